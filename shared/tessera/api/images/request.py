"""Makes an `ImageOrder` of the body of `POST /v1/images/generations`: every field checked and every default decided.

What can be wrong with a request is said here, before there is a record. Does not know HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tessera.api.generation_parameters import cost_of_frames, guidance_of, seed_of, size_of, steps_of
from tessera.api.job_resources import JobResources
from tessera.errors import InvalidRequestError
from tessera.settings.video import VideoSettings
from tessera.wire.images import ImageGenerationRequest
from tessera.wire.jobs import ImageInput
from tessera.wire.models import Card

ShownQuality = Literal["low", "medium", "high"]
_QUALITIES: dict[str | None, ShownQuality] = {"low": "low", "high": "high", "hd": "high"}
_STEPS_OF_QUALITY: dict[ShownQuality, float] = {"low": 0.5, "medium": 1.0, "high": 2.0}
"""Denoising steps as a multiple of the model's own."""


@dataclass(frozen=True)
class ImageOrder:
    """Images that were asked for, checked: what `tessera.api.images.submission.submitted` accepts."""

    request: ImageGenerationRequest
    """The request as it was decoded; it has the priority and the deadline."""
    job_input: ImageInput
    """The input of the job. Submission sets its `request_id`."""
    card: Card
    quality: ShownQuality


async def order_from(request: ImageGenerationRequest, jobs: JobResources) -> ImageOrder:
    """The order of a decoded request.

    Raises:
        InvalidRequestError: a field that this model or server does not allow; names the field.
        ModelNotFoundError, UnavailableError: as `Cards`.
    """
    card = await jobs.cards(request.model)
    job_input = make_input(request, card, jobs.settings.video)
    return ImageOrder(request, job_input, card, quality_of(request))


def quality_of(request: ImageGenerationRequest) -> ShownQuality:
    """The quality that the request's `quality` stands for; `medium` if the request has none."""
    return _QUALITIES.get(request.quality, "medium")


def make_input(request: ImageGenerationRequest, card: Card, settings: VideoSettings) -> ImageInput:
    """The input of the job, every default decided.

    Args:
        request: the decoded body.
        card: the card of the model that will make the images.
        settings: limits and defaults.

    Raises:
        InvalidRequestError: a size, count, quality, format or number of steps that cannot be; names the field.
    """
    if card.image_input == "required":
        raise InvalidRequestError(
            f"the model {card.id!r} starts from an image, so it cannot make one from a text alone", param="model"
        )
    count = request.n or 1
    if count > settings.max_images:
        raise InvalidRequestError(f"`n` is {count}; the limit is {settings.max_images}", param="n")
    if request.response_format == "url":
        raise InvalidRequestError(
            "`response_format` url is not offered, because nothing here is public: ask for b64_json",
            param="response_format",
        )
    output_format = request.output_format or "png"
    if request.output_compression is not None and output_format == "png":
        raise InvalidRequestError(
            "`output_compression` is for `output_format` jpeg and webp; a png loses nothing", param="output_compression"
        )
    width, height = size_of(None if request.size == "auto" else request.size, card, settings)
    return ImageInput(
        model=card.id,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt or "",
        width=width,
        height=height,
        count=count,
        steps=_steps(request, card, settings),
        guidance_scale=guidance_of(request.guidance_scale, card),
        seed=seed_of(request.seed),
        output_format=output_format,
        compression=request.output_compression,
        request_id=None,
    )


def cost_of_images(given: ImageInput) -> float:
    """The cost of the images, in the unit of a video's cost."""
    return cost_of_frames(given.width, given.height, given.count, given.steps, given.guidance_scale)


def _steps(request: ImageGenerationRequest, card: Card, settings: VideoSettings) -> int:
    if request.steps is not None and request.quality not in (None, "auto"):
        raise InvalidRequestError("`quality` and `steps` both say how many steps: send one of them", param="quality")
    steps = steps_of(request.steps, card, settings)
    share = _STEPS_OF_QUALITY[quality_of(request)]
    return min(max(1, round(steps * share)), settings.max_steps)
