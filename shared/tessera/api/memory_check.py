"""Checks before there is a job whether a clip fits the memory of its workers. Does not know how memory is estimated."""

from __future__ import annotations

import msgspec

from tessera.hub.clip_memory import ClipMemoryBudget, ClipShape, Shapes
from tessera.wire.jobs import ImageInput, VideoInput
from tessera.wire.models import Card


def check_memory(given: VideoInput | ImageInput, card: Card) -> None:
    """Refuse what no worker could ever make. While no worker is there, nothing is known, and the worker decides.

    Raises:
        InvalidRequestError: the clip does not fit; names the most frames of that size and the largest size for so many
            frames.
    """
    known = card.clip_memory
    if known is None:
        return
    clip = ClipShape(
        width=given.width,
        height=given.height,
        frames=given.frames if isinstance(given, VideoInput) else 1,
        guidance_scale=given.guidance_scale,
        step_cache=given.step_cache if isinstance(given, VideoInput) and given.step_cache != "off" else None,
    )
    ClipMemoryBudget(known.capacity, tile_above=known.tile_above).check(clip, msgspec.convert(known.shapes, Shapes))
