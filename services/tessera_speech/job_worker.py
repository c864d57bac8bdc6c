"""`python -m tessera_speech.job_worker`: a process that transcribes long recordings, the jobs of `background=true`.

It decodes, finds speech and stores checkpoints; the engine of the speech service transcribes, a piece at a time, beside
the requests of its clients. So a job worker has no model and no torch, and any number of them may run. SIGTERM ends it
at
once: its job goes back to the queue, and another worker goes on from the last piece.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

import aiohttp
import msgspec

from tessera.errors import SettingsError, TesseraError
from tessera.hub.store import ensure
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import CeleryBell, make_app
from tessera.jobs.queues import queue_of_transcriptions
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.process import serve_jobs
from tessera.jobs.worker.runner import JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.load import load
from tessera.settings.tree import Settings
from tessera.telemetry import configure_logging
from tessera.wire.engine import Transcribe, Transcript
from tessera.wire.models import Model, ModelList
from tessera_speech.background.piece_client import PieceClient
from tessera_speech.background.pipeline import BYTES_PER_SAMPLE, TranscriptionJobs
from tessera_speech.routes.pieces import MAX_BYTES

logger = logging.getLogger(__name__)

POLL_EVERY_S = 0.5
"""Seconds between two requests for the models of a service that still starts."""
ANSWER_TIMEOUT_S = 5.0
"""Seconds that the service may take to list its models."""
FRAME_BYTES = 1 << 20
"""Bytes of a message beside its samples."""


def main() -> int:
    """Wait for the service, register, work until a signal. Returns the exit status."""
    settings = load()
    configure_logging("speech-worker", level=settings.suite.log_level, form=settings.suite.log_format)
    try:
        return work(settings)
    except TesseraError as error:
        logger.error("the speech worker cannot start: %s", error.message)
        return 1


def work(settings: Settings) -> int:
    """Work on jobs until a signal. Returns Celery's exit status.

    Raises:
        TesseraError: the model's directory cannot be fetched, or pieces would be too large.
    """
    url = settings.service_url("speech")
    model = _wait_for_model(url)
    card = model.card
    assert card is not None, "our own service tells it"
    assert card.sample_rate is not None, "the engine completes the cards it sends"
    longest = (MAX_BYTES - FRAME_BYTES) // (BYTES_PER_SAMPLE * card.sample_rate)
    if settings.speech.job_piece_seconds > longest:
        raise SettingsError(
            f"`speech.job_piece_seconds` is {settings.speech.job_piece_seconds}; at most {longest} fit one message"
        )
    directory = ensure(settings.speech.transcription_model, settings.models_dir, logger.info).path

    async def transcribe(message: Transcribe) -> list[Transcript]:
        async with aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session:
            return await PieceClient(session, url, card.id).transcribe(message)

    store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifact_store(settings)
    app = make_app(settings)
    bell = CeleryBell(app)
    worker_id, queue = f"speech-{uuid.uuid4().hex[:12]}", queue_of_transcriptions(card.id)
    pipeline = TranscriptionJobs(card, directory, artifacts, settings.speech, settings.data_dir / "hearing", transcribe)
    slots = settings.speech.concurrent_jobs
    runner = JobRunner(store, artifacts, bell, {"transcription": pipeline}, worker=worker_id, queue=queue, slots=slots)
    info = WorkerInfo(
        id=worker_id,
        kind="transcription",
        queue=queue,
        card=card,
        device=model.device or "",
        pid=os.getpid(),
        slots=slots,
    )
    try:
        return serve_jobs(app, runner, info)
    finally:
        bell.close()
        store.close()


def _wait_for_model(url: str) -> Model:
    """The transcription model of the service, once it is loaded. SIGTERM ends the wait with the process."""
    logger.info("waiting for the speech service at %s", url)
    while True:
        with contextlib.suppress(urllib.error.URLError, TimeoutError, OSError, msgspec.MsgspecError):
            with urllib.request.urlopen(f"{url}/v1/models", timeout=ANSWER_TIMEOUT_S) as answer:  # noqa: S310 - our own service
                models = msgspec.json.decode(answer.read(), type=ModelList)
            for model in models.data:
                if model.card is not None and "transcription" in model.card.tasks:
                    return model
        time.sleep(POLL_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
