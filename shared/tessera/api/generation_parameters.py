"""Size, steps, guidance scale and seed of videos and images: checked, with their defaults.

Knows no route, nor whether the frames become a video or images.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

from tessera.errors import InvalidRequestError
from tessera.settings.video import VideoSettings
from tessera.wire.models import Card

DEFAULT_SIZE = "832x480"
"""Size where neither the request nor the model's card names one."""
DEFAULT_STEPS, DEFAULT_GUIDANCE_SCALE = 30, 5.0
"""Steps and guidance scale where neither the request, nor the operator, nor the model's card sets them."""
MIN_SIDE_PIXELS = 16
"""Fewest pixels of width and of height."""


def size_of(size: str | None, card: Card, settings: VideoSettings) -> tuple[int, int]:
    """Width and height in pixels; without a `size`, the first size that the model was made for.

    Raises:
        InvalidRequestError: a side is too short or not a multiple of the model's, or there are too many pixels; names
            the nearest size.
    """
    size = size or (card.sizes[0] if card.sizes else DEFAULT_SIZE)
    width, height = (int(side) for side in size.split("x"))
    made_for = f"; the model is made for {', '.join(card.sizes)}" if card.sizes else ""
    if min(width, height) < MIN_SIDE_PIXELS:
        raise InvalidRequestError(
            f"`size` is {size}; each side has at least {MIN_SIDE_PIXELS} pixels{made_for}", param="size"
        )
    multiple = card.size_multiple
    if width * height > settings.max_pixels:
        shrink = math.sqrt(settings.max_pixels / (width * height))
        nearest = "x".join(str(max(multiple, int(side * shrink) // multiple * multiple)) for side in (width, height))
        raise InvalidRequestError(
            f"`size` is {size}, which is {width * height} pixels; the limit is {settings.max_pixels}, the nearest of "
            f"that shape is {nearest}{made_for}",
            param="size",
        )
    if width % multiple or height % multiple:
        nearest = "x".join(str(max(multiple, side // multiple * multiple)) for side in (width, height))
        raise InvalidRequestError(
            f"`size` is {size}; both sides must be multiples of {multiple}, the nearest below is {nearest}{made_for}",
            param="size",
        )
    return width, height


def steps_of(asked: int | None, card: Card, settings: VideoSettings) -> int:
    """Denoising steps: the request's, else the operator's, else the card's.

    Raises:
        InvalidRequestError: more than `video.max_steps`.
    """
    steps = asked or min(settings.steps or card.steps or DEFAULT_STEPS, settings.max_steps)
    if steps > settings.max_steps:
        raise InvalidRequestError(f"`steps` is {steps}; the limit is {settings.max_steps}", param="steps")
    return steps


def guidance_of(asked: float | None, card: Card) -> float:
    """The request's guidance scale, else the card's, else `DEFAULT_GUIDANCE_SCALE`."""
    known: Iterable[float | None] = (asked, card.guidance_scale, DEFAULT_GUIDANCE_SCALE)
    return next(scale for scale in known if scale is not None)


def second_guidance_of(asked: float | None, first: float | None, card: Card) -> float | None:
    """The guidance scale of a second expert; the card's if the request sets no guidance scale at all.

    Args:
        asked: `guidance_scale_2` of the request.
        first: `guidance_scale` of the request.
        card: the card of the model.

    Raises:
        InvalidRequestError: the model has no second expert.
    """
    if asked is None:
        return card.guidance_scale_2 if first is None else None
    if card.experts < 2:
        raise InvalidRequestError(
            f"`guidance_scale_2` is for models with two experts, and {card.id!r} has one: leave it out",
            param="guidance_scale_2",
        )
    return asked


def seed_of(asked: int | None) -> int:
    """The request's seed, else a random one."""
    return asked if asked is not None else secrets.randbelow(2**31)


def cost_of_frames(width: int, height: int, frames: int, steps: int, guidance_scale: float) -> float:
    """Cost of denoising frames, in millions of pixels over all passes; guidance needs two passes for a step."""
    passes = steps * (2 if guidance_scale > 1.0 else 1)
    return width * height * frames * passes / 1e6
