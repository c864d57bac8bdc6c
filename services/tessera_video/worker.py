"""`python -m tessera_video.worker`: a process that makes videos, several at once where their steps can be batched.

The model is loaded before the first ring is heard. SIGTERM ends it within a denoising step: the job it works on goes
back and another worker takes it at once. Does not know HTTP.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import diffusers
import msgspec
import torch

from tessera.device.hardware import Device, free_bytes, yield_to_interactive
from tessera.diffusion import calibration as diffusion_calibration
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.loading.lora_files import load_adapters
from tessera.diffusion.request import VideoModel
from tessera.errors import ModelLoadError, TesseraError
from tessera.hub.adapters import adapter_files
from tessera.hub.clip_memory import ClipMemoryBudget
from tessera.hub.store import check, ensure
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import CeleryBell, make_app
from tessera.jobs.queues import queue_of
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.process import serve_jobs
from tessera.jobs.worker.runner import JobRunner
from tessera.jobs.worker_store import WorkerStore
from tessera.settings.load import load
from tessera.settings.tree import Settings
from tessera.settings.video import VideoSettings
from tessera.telemetry import configure_logging
from tessera.wire.models import Card, ClipMemory
from tessera_video.images import ImagePipeline
from tessera_video.loading import computation_key, load_model
from tessera_video.pipeline import VideoPipeline
from tessera_video.rank_worker import device_of, rank_workers, share_passes

logger = logging.getLogger(__name__)

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
    yield_to_interactive()
    device = device_of(settings, 0)
    if settings.video.devices == 1:
        return _work(settings, device, None)

    def lost() -> None:
        # Whoever waits for the lost one in a pass waits for ever. The job goes on from its checkpoint elsewhere.
        os._exit(BROKEN_STATUS)

    with rank_workers(settings.video.devices, lost) as meeting:
        return _work(settings, device, meeting)


def _work(settings: Settings, device: Device, meeting: Path | None) -> int:
    started = time.perf_counter()
    found = ensure(settings.video.model, settings.models_dir, logger.info)
    check(found)
    loaded = load_model(found.path, device, settings.video)
    model: VideoModel = loaded
    adapters = adapter_files(settings.video.adapters)
    if meeting and not isinstance(loaded, FamilyModel):
        raise ModelLoadError(f"{found.card.id} steps itself, so its passes cannot be shared: set `video.devices` to 1")
    if adapters and not isinstance(loaded, FamilyModel):
        raise ModelLoadError(f"{found.card.id} steps itself, so it takes no adapters: empty `video.adapters`")
    card = msgspec.structs.replace(found.card, adapters=sorted(adapters))
    end_sharing: Callable[[], None] | None = None
    if isinstance(loaded, FamilyModel):
        load_adapters(loaded, adapters)
        if meeting is not None:
            end_sharing = share_passes(loaded, settings, meeting, device)
        loaded.step_calibration = diffusion_calibration.read(found.path)
        if settings.video.preview_steps:
            loaded.fit_colours()
        capacity = settings.video.memory_bytes or int(MEMORY_SHARE * free_bytes(device.place))
        room, shapes = ClipMemoryBudget(capacity, tile_above=settings.video.tile_pixels), loaded.shapes
        loaded.decodes_in_tiles = lambda request: room.in_tiles(request, shapes)
        memory = ClipMemory(capacity=capacity, shapes=dataclasses.asdict(shapes), tile_above=room.tile_above)
        card = msgspec.structs.replace(card, clip_memory=memory)
        model = StepBatcher(loaded, max_requests=settings.video.concurrent_jobs, memory=room)
    else:
        most = settings.video.tile_pixels
        loaded.decodes_in_tiles = lambda request: 0 < most < request.width * request.height
    logger.info("%s is loaded on %s in %.1f s", found.card.id, device.name, time.perf_counter() - started)

    store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifact_store(settings)
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
        identity=_identity(found.card, loaded, settings.video),
        on_broken_device=end,
    )
    images = ImagePipeline(model, found.card.id, artifacts, on_broken_device=end)
    handlers = {"video": pipeline, "image": images}
    runner = JobRunner(store, artifacts, bell, handlers, worker=worker_id, queue=queue, slots=model.max_requests)
    info = WorkerInfo(
        id=worker_id,
        kind="video",
        queue=queue,
        card=card,
        device=device.name,
        pid=os.getpid(),
        slots=model.max_requests,
    )
    try:
        status = serve_jobs(app, runner, info)
        return BROKEN_STATUS if broken.is_set() else status
    finally:
        model.close()
        if end_sharing is not None:
            end_sharing()
        bell.close()
        store.close()


def _identity(card: Card, model: VideoModel | FamilyModel, settings: VideoSettings) -> str:
    """What has to be equal for two workers to go on from each other's checkpoints."""
    family = model if isinstance(model, FamilyModel) else None
    steps, adapters = (None, {}) if family is None else (family.step_calibration, family.adapters.digests)
    made_with = f"torch {torch.__version__} diffusers {diffusers.__version__}"
    return f"{card.sha256} {made_with} {computation_key(settings)} steps {steps} adapters {sorted(adapters.items())}"


if __name__ == "__main__":
    sys.exit(main())
