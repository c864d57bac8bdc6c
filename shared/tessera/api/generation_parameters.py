"""What videos and images are both asked with: size, steps, guidance and seed, checked, with their defaults.

Does not know routes, nor what is made of the frames.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

from tessera.errors import InvalidRequestError
from tessera.settings.video import VideoSettings
from tessera.wire.models import Card

DEFAULT_SIZE = "832x480"
DEFAULT_STEPS, DEFAULT_GUIDANCE_SCALE = 30, 5.0
"""Where neither the request, nor the operator, nor the model's card says."""
MIN_PIXELS_OF_A_SIDE = 16


def size_of(size: str | None, card: Card, settings: VideoSettings) -> tuple[int, int]:
    """Width and height in pixels; the first size that the model was made for when none is asked.

    Raises:
        InvalidRequestError: a side too short or no multiple of the model's, or too many pixels; names what comes next.
    """
    size = size or (card.sizes[0] if card.sizes else DEFAULT_SIZE)
    width, height = (int(side) for side in size.split("x"))
    made_for = f"; the model is made for {', '.join(card.sizes)}" if card.sizes else ""
    if min(width, height) < MIN_PIXELS_OF_A_SIDE:
        raise InvalidRequestError(
            f"`size` is {size}; each side has at least {MIN_PIXELS_OF_A_SIDE} pixels{made_for}", param="size"
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
    """The guidance scale of a second expert; the card's where a request says none at all.

    Args:
        asked: `guidance_scale_2` of the request.
        first: its `guidance_scale`.
        card: of the model.

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
    """How much work frames are: millions of pixels that are denoised, over all passes."""
    passes = steps * (2 if guidance_scale > 1.0 else 1)
    return width * height * frames * passes / 1e6
