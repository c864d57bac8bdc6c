"""The checkpoint of a transcription job: the windows of its recording, who speaks when, and the transcripts so far.

Another attempt at the job goes on from it. Knows nothing about where it is stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript
from tessera_speech.recordings.diarization import SpeakerTurns

NAME = "checkpoint.msgpack"
"""File of the checkpoint beside the other files of its job."""
CONTENT_TYPE = "application/msgpack"


class TranscriptionCheckpoint(msgspec.Struct):
    """A recording in progress.

    Attributes:
        identity: hash of the job, the model and the version of the window planner; a checkpoint fits if it is equal.
        samples: length of the recording, at the rate of the model.
        windows: (first sample, the one after the last) of each window.
        turns: who speaks when, where that was asked for.
        language: code of the language, once it is known.
        transcribed: how many of the windows are transcribed.
        transcripts: answers of the engine for them.
    """

    identity: str
    samples: int
    windows: list[tuple[int, int]]
    turns: SpeakerTurns | None
    language: str | None
    transcribed: int = msgspec.field(default=0, name="heard")
    transcripts: list[Transcript] = []

    def next_piece_windows(self, max_samples: int) -> int:
        """Number of the next windows that lie within `max_samples`; at least 1 while any is left."""
        count = 0
        first = self.windows[self.transcribed][0]
        for _, end in self.windows[self.transcribed :]:
            if count and end - first > max_samples:
                break
            count += 1
        return count

    def add(self, count: int, transcripts: list[Transcript]) -> None:
        """Add the transcripts of the next `count` windows."""
        self.transcribed += count
        self.transcripts += transcripts
        self.language = self.language or next((each.language for each in transcripts if each.language), None)

    @property
    def position(self) -> int:
        """Sample up to which the recording is transcribed."""
        return self.windows[self.transcribed - 1][1] if self.transcribed else 0

    async def request(self, message: Transcribe) -> AsyncGenerator[FromEngine]:
        """Answer like an engine: all transcripts as the answer to one request."""
        segments = [segment for each in self.transcripts for segment in each.segments]
        yield Transcript(request_id=message.request_id, segments=segments, language=self.language or "", last=True)


def replay_message(state: TranscriptionCheckpoint) -> Transcribe:
    """The message that `TranscriptionCheckpoint.request` answers: windows without samples."""
    return Transcribe(
        request_id="replayed",
        audio=Array(dtype="float32", shape=[0], data=b""),
        windows=state.windows,
        language=state.language,
    )
