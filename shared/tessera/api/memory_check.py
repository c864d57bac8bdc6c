"""Whether a clip fits its workers' memory, asked before there is a job. Does not know how it is estimated."""

from __future__ import annotations

import msgspec

from tessera.hub.clip_memory import ClipMemoryBudget, ClipShape, Shapes
from tessera.wire.jobs import ImageInput, VideoInput
from tessera.wire.models import Card


def check_memory(given: VideoInput | ImageInput, card: Card) -> None:
    """Refuse what no worker could ever make; what is not known (no worker is there) is left to the worker.

    Raises:
        InvalidRequestError: names the most frames of that size, and the largest size for so many frames.
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
