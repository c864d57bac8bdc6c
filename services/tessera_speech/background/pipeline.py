"""Turns a transcription job into its files: decode the recording to disk, plan windows, transcribe piece by piece.

A piece is a run of windows of at most `speech.job_piece_seconds`, one message to the engine. After each piece there is
a checkpoint, so that a killed worker costs one piece. Memory does not grow with the recording: its samples are in a
file that vanishes with the process. Knows nothing about Redis, Celery or HTTP.
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

PROGRESS_EVERY_S = 0.2
"""Seconds between two reports of progress, which also learn whether the job must stop, while a piece is in flight."""
MAX_PROGRESS = 99
"""Highest progress of a job that has not ended, in percent."""
BYTES_PER_SAMPLE = 4
"""Bytes of a float32 sample."""
TranscribePiece = Callable[[Transcribe], Awaitable[list[Transcript]]]
"""Transcribes a piece. Called within an event loop of its job, and cancelled when the job must stop."""


@dataclass(frozen=True)
class _JobRequest:
    """The request of a job, decoded and checked."""

    owner: str
    given: TranscriptionInput
    body: TranscriptionRequest
    prompt_ids: list[int]
    seed: int
    words: bool


class TranscriptionJobs:
    """Transcribes recordings with one model, which runs in the speech service.

    Args:
        card: card of the model, completed by its engine.
        directory: directory of the model; its tokenizer is read from there.
        artifacts: store that recordings come from and transcripts go to.
        settings: limits.
        scratch: directory for samples; created when it is missing.
        transcribe: transcribes a piece with the model.
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
        self._tokenizer = TranscriptTokenizer(directory)
        self._planner = WindowPlanner(card, self._tokenizer, settings)

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """A `tessera.jobs.worker.runner.Handler`. Returns the transcript in every format, by name of the format.

        Raises:
            InvalidRequestError, UnsupportedMediaError: the recording or a field is wrong.
            StorageFullError: there is no room for the transcript.
            EngineDiedError, UnavailableError: no engine transcribes it now; another attempt may help.
            JobStoppedError: the job must stop; raised by a step.
        """
        given = msgspec.json.decode(job.input, type=TranscriptionInput)
        token = request_id_var.set(given.request_id)
        try:
            request = self._read_request(job, given)
            self.scratch.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.scratch, prefix="samples-") as file:
                samples = self._decode(given, file, context)
                state = self._begin(job, request, samples, context)
                asyncio.run(self._transcribe_all(request, samples, state, context))
            return asyncio.run(self._files(request, state, context))
        finally:
            request_id_var.reset(token)

    def _read_request(self, job: Job, given: TranscriptionInput) -> _JobRequest:
        if given.model != self.card.id:
            raise InvalidRequestError(f"this worker has the model {self.card.id!r}, not {given.model!r}", param="model")
        references: list[str] = []
        if given.speakers is not None:
            with self.artifacts.open(given.speakers) as file:
                references = msgspec.json.decode(file.read(), type=list[str])
        body = request_of(given, references)
        if body.chunking_strategy == "none" and self._tokenizer.continues:
            raise InvalidRequestError(
                "a job's recording is cut where nobody speaks, so that it can go on after a fault: leave "
                "`chunking_strategy` out, or send the recording without `background`",
                param="chunking_strategy",
            )
        return _JobRequest(
            owner=job.owner,
            given=msgspec.structs.replace(given, language=self._tokenizer.language(given.language)),
            body=body,
            prompt_ids=self._tokenizer.prompt_ids(given.prompt),
            # The same for every attempt.
            seed=int.from_bytes(hashlib.sha256(job.id.encode()).digest()[:7]),
            words=body.response_format == "diarized_json" or "word" in body.timestamp_granularities,
        )

    def _decode(self, given: TranscriptionInput, file: BinaryIO, context: JobContext) -> np.ndarray[Any, Any]:
        with self.artifacts.open(given.recording) as recording:
            count = recordings.decode_to(
                recording,
                file,
                rate=self._planner.rate,
                max_seconds=self.settings.max_job_seconds,
                check_stop=lambda: context.step(0),
            )
        return np.memmap(file, dtype="<f4", mode="r", shape=(count,))

    def _begin(
        self, job: Job, request: _JobRequest, samples: np.ndarray[Any, Any], context: JobContext
    ) -> TranscriptionCheckpoint:
        """The checkpoint of an earlier attempt, or a new one with planned windows."""
        identity = hashlib.sha256(f"{self.card.sha256} 1 ".encode() + bytes(job.input)).hexdigest()
        found = self._load_checkpoint(job)
        if found is not None and (found.identity, found.samples) == (identity, samples.size):
            logger.info("%s goes on after %.0f s", job.id, found.position / self._planner.rate)
            return found
        options = self._planner.options(request.body)
        known = known_speakers(request.body) if options.diarized else None
        plan = self._planner.plan(samples, options, known, always=True, check_stop=lambda: context.step(0))
        assert plan.windows is not None
        return TranscriptionCheckpoint(
            identity=identity,
            samples=samples.size,
            windows=plan.windows,
            turns=plan.turns,
            language=request.given.language,
        )

    def _load_checkpoint(self, job: Job) -> TranscriptionCheckpoint | None:
        if job.checkpoint is None:
            return None
        try:
            with self.artifacts.open(job.checkpoint) as file:
                return msgspec.msgpack.decode(file.read(), type=TranscriptionCheckpoint)
        except (TesseraError, OSError, msgspec.MsgspecError) as error:
            logger.warning("the checkpoint of %s cannot be read, so it begins anew: %s", job.id, error)
            return None

    async def _transcribe_all(
        self, request: _JobRequest, samples: np.ndarray[Any, Any], state: TranscriptionCheckpoint, context: JobContext
    ) -> None:
        rate = self._planner.rate
        total = round(samples.size / rate, 3)

        def progress() -> None:
            done = min(total, round(state.position / rate, 3))
            context.step(min(MAX_PROGRESS, int(100 * done / total)), (done, total))

        while True:
            progress()
            if state.transcribed == len(state.windows):
                return
            self._store_checkpoint(state, context)
            count = state.next_piece_windows(self.settings.job_piece_seconds * rate)
            piece = asyncio.ensure_future(self.transcribe(self._piece_message(request, samples, state, count)))
            try:
                while not piece.done():
                    await asyncio.wait({piece}, timeout=PROGRESS_EVERY_S)
                    progress()
            finally:
                piece.cancel()
                await asyncio.gather(piece, return_exceptions=True)
            state.add(count, piece.result())

    def _piece_message(
        self, request: _JobRequest, samples: np.ndarray[Any, Any], state: TranscriptionCheckpoint, count: int
    ) -> Transcribe:
        windows = state.windows[state.transcribed : state.transcribed + count]
        first, end = windows[0][0], windows[-1][1]
        longer_than_a_window = samples.size > self._planner.window_s * self._planner.rate
        return Transcribe(
            request_id=f"transcript-{uuid.uuid4().hex}",
            audio=Array(dtype="float32", shape=[end - first], data=samples[first:end].tobytes()),
            language=state.language,
            prompt_ids=request.prompt_ids,
            temperature=request.body.temperature,
            # Like a transcript that is not a job: a recording of several windows has segments in any format.
            timestamps=request.body.response_format in TIMED_FORMATS or longer_than_a_window,
            seed=(request.seed + state.transcribed) % 2**63,
            windows=[(begin - first, stop - first) for begin, stop in windows],
            words=request.words,
            offset=first,
            tenant=request.owner,
        )

    def _store_checkpoint(self, state: TranscriptionCheckpoint, context: JobContext) -> None:
        """Store the checkpoint. A failure costs repeated work later, never the job."""
        try:
            stored = self.artifacts.put(context.key(NAME), msgspec.msgpack.encode(state), CONTENT_TYPE)
        except (TesseraError, OSError) as error:
            logger.warning("no checkpoint of %s is stored: %s", context.job.id, error)
        else:
            context.checkpointed(stored.key)

    async def _files(
        self, request: _JobRequest, state: TranscriptionCheckpoint, context: JobContext
    ) -> Mapping[str, Artifact]:
        """Store the transcript in every format."""

        def replay() -> RunningTranscription:
            seconds = state.samples / self._planner.rate
            return RunningTranscription(replay_message(state), state, self._tokenizer, seconds, state.turns)

        formats: list[DiarizedFormat] = ["json", "text", "srt", "vtt", "verbose_json"]
        found = await finish_transcript(replay(), words="word" in request.body.timestamp_granularities)
        files = {name: encode_transcript(found, name) for name in formats}
        if state.turns is not None:
            files["diarized_json"] = encode_transcript(await finish_with_speakers(replay()), "diarized_json")
        return {
            name: self.artifacts.put(context.key(f"transcript.{SUFFIXES[name]}"), data, content_type)
            for name, (data, content_type) in files.items()
        }
