"""Runs a video job: decodes the first frame, makes the clip, encodes it and its stills, and stores the files.

Knows no Redis, Celery or HTTP: it gets a job and a context to report to.
"""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from PIL import Image, UnidentifiedImageError

from tessera.diffusion.request import DiffusionRequest, Frames, Freeze, ResumeError, VideoModel
from tessera.diffusion.step_cache.policies import DEFAULT_THRESHOLDS, StepCache
from tessera.errors import InvalidRequestError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.worker.runner import JobContext
from tessera.settings.video import VideoSettings
from tessera.telemetry import request_id_var
from tessera.wire.jobs import Artifact, Job, VideoInput
from tessera_video.checkpoints import Checkpoints
from tessera_video.faults import translated_device_errors
from tessera_video.files.containers import CONTAINERS
from tessera_video.files.extended_clip import ExtendedClip, StoredClip, stills_of
from tessera_video.files.preview_jpeg import sender
from tessera_video.files.provenance import provenance_comment
from tessera_video.files.stills import SHEET_FRAMES, spritesheet_jpeg, thumbnail_jpeg

logger = logging.getLogger(__name__)

DENOISED_PERCENT = 95
"""Progress of a job, 0 to 100, when all its steps are finished."""
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
"""Formats of a first frame, as Pillow names them."""


class VideoPipeline:
    """Makes videos with one loaded model.

    Args:
        model: the loaded model.
        model_id: the model's name in jobs.
        artifacts: store of inputs and results.
        settings: limits, and how often checkpoints and previews are made.
        identity: identity of weights, libraries and settings; only workers with equal ones share checkpoints.
        on_broken_device: see `translated_device_errors`.
    """

    def __init__(
        self,
        model: VideoModel,
        model_id: str,
        artifacts: ArtifactStore,
        settings: VideoSettings,
        *,
        identity: str = "",
        on_broken_device: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.model_id = model_id
        self.artifacts = artifacts
        self.settings = settings
        self.identity = identity
        self.on_broken_device = on_broken_device
        self._writer = ThreadPoolExecutor(1, "checkpoint")

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """Implement `tessera.jobs.worker.runner.Handler`. Artifacts are `video`, `thumbnail` and `spritesheet`.

        Raises:
            InvalidRequestError: the first frame is no image, or the job is for another model.
            StorageFullError: the store has no space for the files.
            EngineDiedError, UnavailableError: see `translated_device_errors`.
            JobStoppedError: the job was stopped; raised at a step.
        """
        given = msgspec.json.decode(job.input, type=VideoInput)
        token = request_id_var.set(given.request_id)
        try:
            with translated_device_errors("this video", "a smaller `size` or fewer `seconds`", self.on_broken_device):
                return self._make(given, context)
        finally:
            request_id_var.reset(token)

    def _make(self, given: VideoInput, context: JobContext) -> Mapping[str, Artifact]:
        if given.model != self.model_id:
            raise InvalidRequestError(
                f"this worker has the model {self.model_id!r}, not {given.model!r}", param="model"
            )
        if given.extends is None or given.image is None:
            return self._made(given, context, None)
        # A copy on this machine's disk, because the file is read more than once.
        with tempfile.TemporaryFile() as local, self.artifacts.open(given.image) as file:
            shutil.copyfileobj(file, local)
            return self._made(given, context, StoredClip(local, given.before))

    def _made(self, given: VideoInput, context: JobContext, old: StoredClip | None) -> Mapping[str, Artifact]:
        first = old.last() if old is not None else None if given.image is None else self._first_frame(given.image)
        request = DiffusionRequest(
            id=context.job.id,
            prompt=given.prompt,
            negative_prompt=given.negative_prompt,
            width=given.width,
            height=given.height,
            frames=given.frames,
            steps=given.steps,
            guidance_scale=given.guidance_scale,
            guidance_scale_2=given.guidance_scale_2,
            adapters=tuple(sorted(given.adapters.items())),
            seed=given.seed,
            fps=given.fps,
            step_cache=_step_cache(given),
            preview_steps=self.settings.preview_steps,
            on_preview=sender(context, self._writer),
            image=first,
        )
        logger.info(
            "%s: %d frames of %dx%d in %d steps", request.id, given.frames, given.width, given.height, given.steps
        )
        made = self._generate(request, context)
        frames = made if old is None else ExtendedClip(old, made)
        context.step(DENOISED_PERCENT + 2)
        container = CONTAINERS[given.output_format]
        with self.artifacts.create(context.key(f"video.{given.output_format}"), container.content_type) as video:
            container.write(frames, given.fps, video.path, provenance_comment(given, seed=given.seed))
        context.step(DENOISED_PERCENT + 4)
        middle, spread = (frames, frames) if isinstance(frames, np.ndarray) else stills_of(frames, SHEET_FRAMES)
        pictures = {"thumbnail": thumbnail_jpeg(middle), "spritesheet": spritesheet_jpeg(spread)}
        stored = {
            name: self.artifacts.put(context.key(f"{name}.jpg"), data, "image/jpeg") for name, data in pictures.items()
        }
        return {"video": video.artifact, **stored}

    def _generate(self, request: DiffusionRequest, context: JobContext) -> Frames:
        identity = hashlib.sha256(self.identity.encode() + bytes(context.job.input)).hexdigest()
        every = self.settings.checkpoint_steps
        checkpoints = Checkpoints(context, self.artifacts, self._writer, identity=identity, every=every)

        def on_step(done: int, total: int, freeze: Freeze | None) -> None:
            checkpoints.step(round(DENOISED_PERCENT * done / max(total, 1)), done, freeze)

        try:
            resume = checkpoints.find()
            if resume is not None:
                logger.info("%s goes on from a checkpoint", request.id)
                try:
                    return self.model.generate(request, on_step, resume)
                except ResumeError as error:
                    logger.warning("%s cannot go on from its checkpoint and begins anew: %s", request.id, error)
            return self.model.generate(request, on_step)
        finally:
            checkpoints.finish()

    def _first_frame(self, key: str) -> Image.Image:
        with self.artifacts.open(key) as file:
            data = file.read()
        try:
            image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
            # The size is in the header, so nothing has been decoded yet.
            if image.width * image.height > self.settings.max_pixels:
                raise InvalidRequestError(
                    f"`input_reference` has {image.width}x{image.height} pixels; the limit is "
                    f"{self.settings.max_pixels} in all",
                    param="input_reference",
                )
            return image.convert("RGB")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise InvalidRequestError(
                f"`input_reference` cannot be decoded: {error}", param="input_reference"
            ) from error


def _step_cache(given: VideoInput) -> StepCache | None:
    if given.step_cache == "off":
        return None
    return StepCache(given.step_cache, given.step_cache_threshold or DEFAULT_THRESHOLDS[given.step_cache])
