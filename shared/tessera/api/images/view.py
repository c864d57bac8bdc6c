"""Shows an ended image job to its client: OpenAI's response, or an error. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.api.images.request import ImageOrder
from tessera.errors import (
    ConflictError,
    EngineDiedError,
    InternalError,
    TesseraError,
    UnavailableError,
    all_errors,
)
from tessera.wire.images import Image, ImagesResponse
from tessera.wire.jobs import JobError

_ERRORS_OF_JOBS: Mapping[str | None, type[TesseraError]] = {
    "cancelled": ConflictError,
    "out_of_memory": UnavailableError,
    "worker_died": EngineDiedError,
}
"""The errors for codes that only jobs have."""


@dataclass(frozen=True)
class FinishedImages:
    """The images of a completed job."""

    order: ImageOrder
    created_at: int
    """Time at which the job was accepted, in Unix seconds."""
    encoded: list[str]
    """The files in base64."""


def images_response(finished: FinishedImages) -> ImagesResponse:
    """The images as OpenAI shows them; each has the seed that makes it again."""
    given = finished.order.job_input
    return ImagesResponse(
        created=finished.created_at,
        data=[Image(b64_json=encoded, seed=given.seed + index) for index, encoded in enumerate(finished.encoded)],
        background="opaque",
        output_format=given.output_format,
        quality=finished.order.quality,
        size=f"{given.width}x{given.height}",
    )


def error_of(error: JobError | None) -> TesseraError:
    """The error of a failed job as the error of the request that waits for it."""
    if error is None:
        return InternalError("the images could not be made")
    known = {**{kind.code: kind for kind in reversed(all_errors())}, **_ERRORS_OF_JOBS}
    return known.get(error.code, InternalError)(error.message, code=error.code)
