"""Runs an image job: each image is a clip of one frame, and the images of a job share denoising steps.

Knows no Redis, Celery or HTTP: it gets a job and a context to report to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import numpy.typing as npt

from tessera.diffusion.request import DiffusionRequest, Freeze, VideoModel
from tessera.errors import InvalidRequestError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.worker.runner import JobContext
from tessera.telemetry import request_id_var
from tessera.wire.jobs import Artifact, ImageInput, Job
from tessera_video.faults import translated_device_errors
from tessera_video.files.provenance import provenance_comment
from tessera_video.files.stills import image_file

DENOISED_PERCENT = 95
"""Progress of a job, 0 to 100, when all its steps are finished."""


class ImagePipeline:
    """Makes images with one loaded model. There are no checkpoints: a killed image job starts again.

    Args:
        model: the loaded model.
        model_id: the model's name in jobs.
        artifacts: store for the results.
        on_broken_device: see `translated_device_errors`.
    """

    def __init__(
        self,
        model: VideoModel,
        model_id: str,
        artifacts: ArtifactStore,
        *,
        on_broken_device: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model
        self.model_id = model_id
        self.artifacts = artifacts
        self.on_broken_device = on_broken_device

    def __call__(self, job: Job, context: JobContext) -> Mapping[str, Artifact]:
        """Implement `tessera.jobs.worker.runner.Handler`. Artifacts are `image-0`, `image-1` and so on.

        Raises:
            InvalidRequestError: the job is for another model.
            StorageFullError: the store has no space for the files.
            EngineDiedError, UnavailableError: see `translated_device_errors`.
            JobStoppedError: the job was stopped; raised at a step.
        """
        given = msgspec.json.decode(job.input, type=ImageInput)
        if given.model != self.model_id:
            raise InvalidRequestError(
                f"this worker has the model {self.model_id!r}, not {given.model!r}", param="model"
            )
        token = request_id_var.set(given.request_id)
        try:
            with translated_device_errors("these images", "a smaller `size` or `n`", self.on_broken_device):
                images = self._images(given, context)
            return {f"image-{index}": self._store(image, index, given, context) for index, image in enumerate(images)}
        finally:
            request_id_var.reset(token)

    def _images(self, given: ImageInput, context: JobContext) -> list[npt.NDArray[np.uint8]]:
        progress = _Progress(given.count, context)
        with ThreadPoolExecutor(given.count, "image") as pool:
            making = [pool.submit(self._image, index, given, context.job.id, progress) for index in range(given.count)]
        faults = [fault for each in making if (fault := each.exception()) is not None]
        for fault in sorted(faults, key=lambda fault: isinstance(fault, _OthersFailedError)):
            raise fault  # the failure for which the other images were stopped
        return [each.result() for each in making]

    def _image(self, index: int, given: ImageInput, job_id: str, progress: _Progress) -> npt.NDArray[np.uint8]:
        token = request_id_var.set(given.request_id)
        try:
            request = DiffusionRequest(
                id=f"{job_id}-{index}",
                prompt=given.prompt,
                negative_prompt=given.negative_prompt,
                width=given.width,
                height=given.height,
                frames=1,
                steps=given.steps,
                guidance_scale=given.guidance_scale,
                seed=given.seed + index,
            )
            frame: npt.NDArray[np.uint8] = self.model.generate(request, progress.on_step_of(index))[0]
        except BaseException:
            progress.fail()
            raise
        finally:
            request_id_var.reset(token)
        return frame

    def _store(self, pixels: npt.NDArray[np.uint8], index: int, given: ImageInput, context: JobContext) -> Artifact:
        data = image_file(
            pixels,
            given.output_format,
            compression=given.compression,
            comment=provenance_comment(given, seed=given.seed + index),
        )
        return self.artifacts.put(
            context.key(f"image-{index}.{given.output_format}"), data, f"image/{given.output_format}"
        )


class _OthersFailedError(Exception):
    """Another image of the same job has failed, so this one is not needed."""


class _Progress:
    """Progress of a job with several images: the mean of theirs. Stops all images when the job or one image ends."""

    def __init__(self, count: int, context: JobContext) -> None:
        self._done = [0.0] * count
        self._context = context
        self._failed = threading.Event()

    def fail(self) -> None:
        """Say that one image has failed, which stops the others."""
        self._failed.set()

    def on_step_of(self, index: int) -> Callable[[int, int, Freeze | None], None]:
        """Return the `OnStep` of one image."""

        def on_step(done: int, total: int, _: Freeze | None) -> None:
            self._done[index] = done / max(total, 1)
            self._context.step(round(DENOISED_PERCENT * sum(self._done) / len(self._done)))
            if self._failed.is_set():
                raise _OthersFailedError

        return on_step
