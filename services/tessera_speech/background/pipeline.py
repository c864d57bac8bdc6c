"""From a transcription job to its files: decode the recording onto a disk, cut it, have it heard piece by piece.

After each piece there is a checkpoint, so that a worker that is killed costs one piece. Memory does not grow with the
recording: its samples are in a file that is gone with the process. Does not know Redis, Celery or HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tessera.api.transcriptions.request import request_of
from tessera.errors import InvalidRequestError, TesseraError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.worker.runner import JobContext
from tessera.settings.speech import SpeechSettings
from tessera.telemetry import request_id_var
from tessera.wire.audio import DiarizedFormat, TranscriptionRequest
from tessera.wire.engine import Array, Transcribe, Transcript
from tessera.wire.jobs import Artifact, Job, TranscriptionInput
from tessera.wire.models import Card
from tessera_speech.background.checkpoint import CONTENT_TYPE, NAME, TranscriptionCheckpoint, replay_message
from tessera_speech.recordings import decoding as recordings
from tessera_speech.recordings.diarization import known_speakers
from tessera_speech.transcription.audio_to_text import TIMED_FORMATS, RunningTranscription
from tessera_speech.transcription.transcript_files import (
    SUFFIXES,
    encode_transcript,
    finish_transcript,
    finish_with_speakers,
)
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer
from tessera_speech.transcription.window_planning import WindowPlanner

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
"""Between two looks, while a piece is heard, whether the job is to stop."""
MOST_PROGRESS = 99
BYTES_PER_SAMPLE = 4
TranscribePiece = Callable[[Transcribe], Awaitable[list[Transcript]]]
"""Has a piece heard. Called within an event loop of its job; cancelled when the job is to stop."""


@dataclass(frozen=True)
class _JobRequest:
    """A job, decoded."""

    given: TranscriptionInput
    body: TranscriptionRequest
    prompt_ids: list[int]
    seed: int
    words: bool


class TranscriptionJobs:
    """Transcribes recordings with one model, which others run.

    Args:
        card: of the model, completed by its engine.
        directory: of the model; its tokenizer is read from there.
        artifacts: where recordings come from and transcripts go.
        settings: limits.
        scratch: a directory for samples; made when it is missing.
        transcribe: the model.
    """

    def __init__(
        self,
        card: Card,
        directory: Path,
        artifacts: ArtifactStore,
        settings: SpeechSettings,
        scratch: Path,
        transcribe: TranscribePiece,
    ) -> None:
        self.card = card
        self.artifacts = artifacts
        self.settings = settings
        self.scratch = scratch
        self.transcribe = transcribe
        self._transcripts = TranscriptTokenizer(directory)
        self._cutter = WindowPlanner(card, self._transcripts, settings)

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """A `tessera.jobs.worker.runner.Handler`: the transcript in every format that was heard, by the format's name.

        Raises:
            InvalidRequestError, UnsupportedMediaError: what is wrong with the recording or with a field.
            StorageFullError: there is no room for the transcript.
            EngineDiedError, UnavailableError: nobody hears it now; another attempt may help.
            JobStoppedError: at a step.
        """
        given = msgspec.json.decode(job.input, type=TranscriptionInput)
        token = request_id_var.set(given.request_id)
        try:
            asked = self._asked(job, given)
            self.scratch.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.scratch, prefix="samples-") as file:
                samples = self._decoded(given, file, context)
                state = self._state(job, asked, samples, context)
                asyncio.run(self._transcribe_all(asked, samples, state, context))
            return asyncio.run(self._files(asked, state, context))
        finally:
            request_id_var.reset(token)

    def _asked(self, job: Job, given: TranscriptionInput) -> _JobRequest:
        if given.model != self.card.id:
            raise InvalidRequestError(f"this worker has the model {self.card.id!r}, not {given.model!r}", param="model")
        references: list[str] = []
        if given.speakers is not None:
            with self.artifacts.open(given.speakers) as file:
                references = msgspec.json.decode(file.read(), type=list[str])
        body = request_of(given, references)
        if body.chunking_strategy == "none" and self._transcripts.continues:
            raise InvalidRequestError(
                "a job's recording is cut where nobody speaks, so that it can go on after a fault: leave "
                "`chunking_strategy` out, or send the recording without `background`",
                param="chunking_strategy",
            )
        return _JobRequest(
            given=msgspec.structs.replace(given, language=self._transcripts.language(given.language)),
            body=body,
            prompt_ids=self._transcripts.prompt_ids(given.prompt),
            # The same for each attempt.
            seed=int.from_bytes(hashlib.sha256(job.id.encode()).digest()[:7]),
            words=body.response_format == "diarized_json" or "word" in body.timestamp_granularities,
        )

    def _decoded(self, given: TranscriptionInput, file: BinaryIO, context: JobContext) -> np.ndarray[Any, Any]:
        with self.artifacts.open(given.recording) as recording:
            count = recordings.decode_to(
                recording,
                file,
                rate=self._cutter.rate,
                max_seconds=self.settings.max_job_seconds,
                look=lambda: context.step(0),
            )
        return np.memmap(file, dtype="<f4", mode="r", shape=(count,))

    def _state(
        self, job: Job, asked: _JobRequest, samples: np.ndarray[Any, Any], context: JobContext
    ) -> TranscriptionCheckpoint:
        """What an earlier attempt has left, or where this one begins."""
        identity = hashlib.sha256(f"{self.card.sha256} 1 ".encode() + bytes(job.input)).hexdigest()
        found = self._checkpoint(job)
        if found is not None and (found.identity, found.samples) == (identity, samples.size):
            logger.info("%s goes on behind %.0f s", job.id, found.position / self._cutter.rate)
            return found
        wanted = self._cutter.wanted(asked.body)
        known = known_speakers(asked.body) if wanted.diarized else None
        cut = self._cutter.cut(samples, wanted, known, always=True, look=lambda: context.step(0))
        assert cut.windows is not None
        return TranscriptionCheckpoint(
            identity=identity,
            samples=samples.size,
            windows=cut.windows,
            turns=cut.turns,
            language=asked.given.language,
        )

    def _checkpoint(self, job: Job) -> TranscriptionCheckpoint | None:
        if job.checkpoint is None:
            return None
        try:
            with self.artifacts.open(job.checkpoint) as file:
                return msgspec.msgpack.decode(file.read(), type=TranscriptionCheckpoint)
        except (TesseraError, OSError, msgspec.MsgspecError) as error:
            logger.warning("the checkpoint of %s cannot be read, so it begins anew: %s", job.id, error)
            return None

    async def _transcribe_all(
        self, asked: _JobRequest, samples: np.ndarray[Any, Any], state: TranscriptionCheckpoint, context: JobContext
    ) -> None:
        rate = self._cutter.rate
        total = round(samples.size / rate, 3)

        def progress() -> None:
            done = min(total, round(state.position / rate, 3))
            context.step(min(MOST_PROGRESS, int(100 * done / total)), (done, total))

        while True:
            progress()
            if state.transcribed == len(state.windows):
                return
            self._keep(state, context)
            count = state.next_piece_windows(self.settings.job_piece_seconds * rate)
            hearing = asyncio.ensure_future(self.transcribe(self._piece(asked, samples, state, count)))
            try:
                while not hearing.done():
                    await asyncio.wait({hearing}, timeout=LOOK_EVERY_S)
                    progress()
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            state.add(count, hearing.result())

    def _piece(
        self, asked: _JobRequest, samples: np.ndarray[Any, Any], state: TranscriptionCheckpoint, count: int
    ) -> Transcribe:
        windows = state.windows[state.transcribed : state.transcribed + count]
        first, end = windows[0][0], windows[-1][1]
        longer_than_a_window = samples.size > self._cutter.window_s * self._cutter.rate
        return Transcribe(
            request_id=f"transcript-{uuid.uuid4().hex}",
            audio=Array(dtype="float32", shape=[end - first], data=samples[first:end].tobytes()),
            language=state.language,
            prompt_ids=asked.prompt_ids,
            temperature=asked.body.temperature,
            # As for who waits: a recording of several windows has segments, whatever is asked for.
            timestamps=asked.body.response_format in TIMED_FORMATS or longer_than_a_window,
            seed=(asked.seed + state.transcribed) % 2**63,
            windows=[(begin - first, stop - first) for begin, stop in windows],
            words=asked.words,
            offset=first,
        )

    def _keep(self, state: TranscriptionCheckpoint, context: JobContext) -> None:
        """A checkpoint: never worth a job."""
        try:
            stored = self.artifacts.put(context.key(NAME), msgspec.msgpack.encode(state), CONTENT_TYPE)
        except (TesseraError, OSError) as error:
            logger.warning("no checkpoint of %s is kept: %s", context.job.id, error)
        else:
            context.checkpointed(stored.key)

    async def _files(
        self, asked: _JobRequest, state: TranscriptionCheckpoint, context: JobContext
    ) -> Mapping[str, Artifact]:
        def listening() -> RunningTranscription:
            seconds = state.samples / self._cutter.rate
            return RunningTranscription(replay_message(state), state, self._transcripts, seconds, state.turns)

        formats: list[DiarizedFormat] = ["json", "text", "srt", "vtt", "verbose_json"]
        found = await finish_transcript(listening(), words="word" in asked.body.timestamp_granularities)
        files = {name: encode_transcript(found, name) for name in formats}
        if state.turns is not None:
            files["diarized_json"] = encode_transcript(await finish_with_speakers(listening()), "diarized_json")
        return {
            name: self.artifacts.put(context.key(f"transcript.{SUFFIXES[name]}"), data, content_type)
            for name, (data, content_type) in files.items()
        }
