"""What is known of a recording that is half heard: where it is cut, who speaks when, and what was heard so far.

It is the checkpoint from which another attempt goes on. Does not know where it is kept.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript
from tessera_speech.recordings.diarization import SpeakerTurns

NAME, CONTENT_TYPE = "checkpoint.msgpack", "application/msgpack"


class TranscriptionCheckpoint(msgspec.Struct):
    """A recording in work.

    `identity` is of job, model and the program that cuts: what is equal when one can go on from it. `windows` are in
    samples of the recording, `transcripts` what was heard of the first `transcribed` of them.
    """

    identity: str
    samples: int
    windows: list[tuple[int, int]]
    turns: SpeakerTurns | None
    language: str | None
    transcribed: int = msgspec.field(default=0, name="heard")
    transcripts: list[Transcript] = []

    def next_piece_windows(self, most_samples: int) -> int:
        """How many of the windows from `transcribed` on lie within `most_samples`; at least one while any is left."""
        count = 0
        first = self.windows[self.transcribed][0]
        for _, end in self.windows[self.transcribed :]:
            if count and end - first > most_samples:
                break
            count += 1
        return count

    def add(self, count: int, heard: list[Transcript]) -> None:
        """`count` more windows were heard."""
        self.transcribed += count
        self.transcripts += heard
        self.language = self.language or next((each.language for each in heard if each.language), None)

    @property
    def position(self) -> int:
        """Samples behind which nothing was heard yet."""
        return self.windows[self.transcribed - 1][1] if self.transcribed else 0

    async def request(self, message: Transcribe) -> AsyncGenerator[FromEngine]:
        """Answer as the engine did: all that was heard, as if it had been one request."""
        segments = [segment for each in self.transcripts for segment in each.segments]
        yield Transcript(request_id=message.request_id, segments=segments, language=self.language or "", last=True)


def replay_message(state: TranscriptionCheckpoint) -> Transcribe:
    """What `TranscriptionCheckpoint.request` answers: the windows without the sound."""
    return Transcribe(
        request_id="replayed",
        audio=Array(dtype="float32", shape=[0], data=b""),
        windows=state.windows,
        language=state.language,
    )
