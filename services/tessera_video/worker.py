"""`python -m tessera_video.worker`: a process that makes videos, several at once when their steps can be batched.

The model is loaded before the first job is taken. SIGTERM ends the worker within a denoising step: its job returns to
the queue with a checkpoint, and another worker takes it at once. Knows no HTTP.
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
from tessera.diffusion.whole_pipeline import PipelineModel
from tessera.errors import ModelLoadError, TesseraError
from tessera.hub.adapters import adapter_files
from tessera.hub.clip_memory import ClipMemoryBudget
from tessera.hub.step_caches import step_caches_of
from tessera.hub.store import check, ensure
from tessera.jobs.artifacts.selection import make_artifact_store
from tessera.jobs.bell import CeleryBell, make_app
from tessera.jobs.queues import queue_of
from tessera.jobs.records import WorkerInfo
from tessera.jobs.worker.process import serve_jobs
from tessera.jobs.worker.runner import Handler, JobRunner
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
"""Share (0 to 1) of the memory free after the model is loaded that clips may take, if the settings name no limit."""
BROKEN_STATUS = 4
"""Exit status of a worker whose device has failed."""


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
    """Run as a worker until a signal. Returns Celery's exit status, or `BROKEN_STATUS` when the device has failed.

    Raises:
        TesseraError: the model cannot be made or loaded, or there is no such device.
    """
    yield_to_interactive()
    device = device_of(settings, 0)
    if settings.video.devices == 1:
        return _work(settings, device, None)

    def lost() -> None:
        # A pass that waits for the lost rank would wait for ever. The job resumes from its checkpoint elsewhere.
        os._exit(BROKEN_STATUS)

    with rank_workers(settings.video.devices, lost) as rendezvous:
        return _work(settings, device, rendezvous)


def _work(settings: Settings, device: Device, rendezvous: Path | None) -> int:
    started = time.perf_counter()
    found = ensure(settings.video.model, settings.models_dir, logger.info)
    check(found)
    loaded = load_model(found.path, device, settings.video)
    adapters = adapter_files(settings.video.adapters)
    if rendezvous and not isinstance(loaded, FamilyModel):
        raise ModelLoadError(f"{found.card.id} steps itself, so its passes cannot be shared: set `video.devices` to 1")
    if adapters and not isinstance(loaded, FamilyModel):
        raise ModelLoadError(f"{found.card.id} steps itself, so it takes no adapters: empty `video.adapters`")
    card = msgspec.structs.replace(found.card, adapters=sorted(adapters))
    end_sharing: Callable[[], None] | None = None
    model: VideoModel
    if isinstance(loaded, FamilyModel):
        load_adapters(loaded, adapters)
        if rendezvous is not None:
            end_sharing = share_passes(loaded, settings, rendezvous, device)
        loaded.step_calibration = diffusion_calibration.read(found.path)
        if settings.video.preview_steps:
            loaded.fit_colours()
        capacity = settings.video.memory_bytes or int(MEMORY_SHARE * free_bytes(device.place))
        budget, shapes = ClipMemoryBudget(capacity, tile_above=settings.video.tile_pixels), loaded.shapes
        loaded.decodes_in_tiles = lambda request: budget.in_tiles(request, shapes)
        memory = ClipMemory(capacity=capacity, shapes=dataclasses.asdict(shapes), tile_above=budget.tile_above)
        step_caches = step_caches_of(calibrated=loaded.step_calibration is not None, shared_by=loaded.shared_by)
        card = msgspec.structs.replace(card, clip_memory=memory, step_caches=step_caches)
        model = StepBatcher(loaded, max_requests=settings.video.concurrent_jobs, memory=budget)
    else:
        card = msgspec.structs.replace(card, step_caches=[])
        most = settings.video.tile_pixels
        loaded.decodes_in_tiles = lambda request: 0 < most < request.width * request.height
        model = loaded
    logger.info("%s is loaded on %s in %.1f s", found.card.id, device.name, time.perf_counter() - started)

    store = WorkerStore(settings.redis_url, timeout_s=settings.redis.timeout_s, settings=settings.jobs)
    artifacts = make_artifact_store(settings)
    app = make_app(settings)
    bell = CeleryBell(app)
    worker_id = f"video-{uuid.uuid4().hex[:12]}"
    queue = queue_of(found.card.id)

    broken = threading.Event()

    def end() -> None:
        """End as on SIGTERM, but with `BROKEN_STATUS`, so that a supervisor starts a new process."""
        broken.set()
        runner.drain()  # at once, before the signal arrives: no further job may be taken
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
    handlers: dict[str, Handler] = {"video": pipeline, "image": images}
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


def _identity(card: Card, model: FamilyModel | PipelineModel, settings: VideoSettings) -> str:
    """Return what must be equal for two workers to resume from each other's checkpoints."""
    family = model if isinstance(model, FamilyModel) else None
    steps, adapters = (None, {}) if family is None else (family.step_calibration, family.adapters.digests)
    made_with = f"torch {torch.__version__} diffusers {diffusers.__version__}"
    return f"{card.sha256} {made_with} {computation_key(settings)} steps {steps} adapters {sorted(adapters.items())}"


if __name__ == "__main__":
    sys.exit(main())
