"""`python -m tessera_video.worker`: a process that makes videos, several at once where their steps can be batched.

The model is loaded before the first ring is heard. SIGTERM ends it within a denoising step: the job it works on goes
back and another worker takes it at once. Celery runs threads, never a forked pool: CUDA does not survive a fork.
Does not know HTTP.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
import warnings
from typing import Any

import diffusers
import torch
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from tessera.device import choose, free_bytes, yield_to_interactive
from tessera.engine import diffusion_calibration
from tessera.engine.diffusion import VideoModel
from tessera.engine.diffusion_batching import StepBatcher
from tessera.engine.diffusion_family import FamilyModel
from tessera.engine.diffusion_memory import MemoryRoom
from tessera.errors import TesseraError
from tessera.hub.store import check, ensure
from tessera.jobs.artifact_places import make_artifacts
from tessera.jobs.celery_app import CeleryBell, listen, make_app
from tessera.jobs.hearing import Hearing
from tessera.jobs.presence import Presence
from tessera.jobs.reaper import Reaper
from tessera.jobs.records import WorkerInfo
from tessera.jobs.runner import Runner
from tessera.jobs.serving import queue_of
from tessera.jobs.worker_store import WorkerStore
from tessera.models.diffusion import load as load_model
from tessera.settings import Settings, load
from tessera.telemetry import configure_logging
from tessera.wire.models import Card
from tessera_video.images import ImagePipeline
from tessera_video.pipeline import VideoPipeline

logger = logging.getLogger(__name__)

DEAF_AFTER_S = 90.0
DEAF_STATUS = 3
MEMORY_SHARE = 0.9
"""Of what is free when the model is loaded."""
BROKEN_STATUS = 4


def main() -> int:
    """Load, register, work until a signal. Returns the exit status."""
    settings = load()
    configure_logging("video-worker", level=settings.suite.log_level, form=settings.suite.log_format)
    try:
        return work(settings)
    except TesseraError as error:
        logger.error("the video worker cannot start: %s", error.message)
        return 1


def work(settings: Settings) -> int:
    """Be a worker. Returns the exit status: Celery's, or `BROKEN_STATUS` when the device has failed.

    Raises:
        TesseraError: the model cannot be made or loaded, or there is no such device.
    """
    started = time.perf_counter()
    yield_to_interactive()
    device = choose(settings.video.device, threads=settings.video.threads)
    found = ensure(settings.video.model, settings.models_dir, logger.info)
    check(found)
    loaded = load_model(found.path, device)
    model: VideoModel = loaded
    if isinstance(loaded, FamilyModel):
        loaded.step_calibration = diffusion_calibration.read(found.path)
        if settings.video.preview_steps:
            loaded.fit_colours()
        room = MemoryRoom(settings.video.memory_bytes or int(MEMORY_SHARE * free_bytes(device.place)))
        model = StepBatcher(loaded, together=settings.video.concurrent_jobs, memory=room)
    logger.info("%s is loaded on %s in %.1f s", found.card.id, device.name, time.perf_counter() - started)

    store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifacts(settings)
    app = make_app(settings)
    bell = CeleryBell(app)
    worker_id = f"video-{uuid.uuid4().hex[:12]}"
    queue = queue_of(found.card.id)

    broken = threading.Event()

    def end() -> None:
        """As SIGTERM from outside does, but with a status that says why: a supervisor starts a sound process."""
        broken.set()
        runner.drain()  # at once: the signal comes when the next job would be taken already
        os.kill(os.getpid(), signal.SIGTERM)

    pipeline = VideoPipeline(
        model,
        found.card.id,
        artifacts,
        settings.video,
        identity=_identity(found.card, loaded),
        on_broken_device=end,
    )
    images = ImagePipeline(model, found.card.id, artifacts, on_broken_device=end)
    handlers = {"video": pipeline, "image": images}
    runner = Runner(store, artifacts, bell, handlers, worker=worker_id, queue=queue, slots=model.together)
    info = WorkerInfo(
        id=worker_id,
        kind="video",
        queue=queue,
        card=found.card,
        device=device.name,
        pid=os.getpid(),
        slots=model.together,
    )
    presence, reaper = Presence(store, info), Reaper(store, artifacts, bell)
    hearing = Hearing(store, queue, runner, deaf_after_s=DEAF_AFTER_S, on_deaf=lambda: os._exit(DEAF_STATUS))

    def drain(**_: Any) -> None:
        runner.drain()

    def keep_our_logging(**_: Any) -> None:
        """Being connected is what keeps Celery from configuring logging."""

    warnings.filterwarnings("ignore", category=SecurityWarning)  # about root and pickle: messages are JSON only
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    listen(app, runner.run)
    signals.setup_logging.connect(keep_our_logging, weak=False)
    signals.worker_shutting_down.connect(drain, weak=False)
    for thread in (presence, reaper, hearing):
        thread.start()
    try:
        celery_worker = app.Worker(
            hostname=worker_id,
            pool="threads",
            concurrency=model.together,
            queues=[queue],
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            quiet=True,
        )
        celery_worker.start()
        return BROKEN_STATUS if broken.is_set() else int(celery_worker.exitcode or 0)
    finally:
        for thread in (hearing, reaper, presence):
            thread.close()
        model.close()
        bell.close()
        store.close()


def _identity(card: Card, model: VideoModel | FamilyModel) -> str:
    """What has to be equal for two workers to go on from each other's checkpoints."""
    steps = model.step_calibration if isinstance(model, FamilyModel) else None
    return f"{card.sha256} torch {torch.__version__} diffusers {diffusers.__version__} steps {steps}"


if __name__ == "__main__":
    sys.exit(main())
