"""Estimates the memory of a clip from sizes before it begins, and limits the memory of the clips in progress.

The estimate adds what a pass through one block holds at a time, the decoder's widest layers for the frames that it
decodes at once, and the finished frames. It is high by design, and leaves out what an allocator wastes. Knows no family
of models, and not where the free bytes come from (`tessera.device.hardware` does).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.errors import InvalidRequestError

WIDTHS_IN_A_BLOCK = 10
"""Tensors of the model's width that a block holds at once: hidden states, norm, queries, keys, values, copies."""
LAYERS_IN_A_DECODER = 5
"""Tensors of the decoder's width at full resolution that it holds at once, one of them unfolded for a convolution."""
COPIES_OF_FRAMES = 3
"""Copies of all frames, each counted as float32: decoded, returned to the caller, and as bytes."""
COPIES_OF_TILED_FRAMES = 6
"""Copies of all frames when they are decoded in tiles: also all tiles, which overlap, and the rows of tiles."""
COPIES_OF_LATENTS = 8
"""Copies of the latents, with what schedulers remember."""
CHECK_INTERVAL_S = 0.5
"""Seconds between two calls of a waiting request's `on_wait`."""
GIB = 2**30
"""Bytes in a GiB."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of a model that the estimate reads. Field names are those of `shapes` in a card's `clip_memory`."""

    frames_multiple: int
    """Frames per latent frame."""
    spatial: int
    """Pixels per side of a latent."""
    patch: int
    """Latents per token of the transformer."""
    size_multiple: int
    """Pixels: width and height of a clip are multiples of this."""
    channels: int
    """Latent channels that the transformer reads."""
    width: int
    """Channels of the transformer's hidden states."""
    hidden: int
    """Channels of the feed-forward layer."""
    decoder_width: float
    """Channels of the decoder at full resolution; a quarter of its last channels if it ends at half the resolution."""
    decoded_at_once: int
    """Latent frames that the decoder decodes at once."""
    bytes_each: int
    """Bytes of an element in the transformer."""
    tile_pixels: int = 0
    """Pixels of a tile that the decoder can decode by itself; 0 when it cannot decode in tiles."""
    lengths: int = 0
    """Clips have a multiple of this plus one frames; 0 stands for `frames_multiple`."""


class ClipSize(Protocol):
    """The fields of a request that the estimate reads, as `ClipShape` and `DiffusionRequest` have them."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def frames(self) -> int: ...
    @property
    def guidance_scale(self) -> float: ...
    @property
    def step_cache(self) -> object | None: ...


@dataclass(frozen=True)
class ClipShape:
    """The size of a clip whose memory is estimated without a request."""

    width: int
    height: int
    frames: int
    guidance_scale: float
    step_cache: object | None = None


def estimate(request: ClipSize, shapes: Shapes, *, in_tiles: bool = False) -> int:
    """Return the most bytes that a clip takes at once beside the weights, decoded whole or in tiles."""
    latent_frames = (request.frames - 1) // shapes.frames_multiple + 1
    cells = latent_frames * -(-request.height // shapes.spatial) * -(-request.width // shapes.spatial)
    tokens, rows = -(-cells // shapes.patch), 2 if request.guidance_scale > 1 else 1
    state = COPIES_OF_LATENTS * 4 * shapes.channels * cells
    if request.step_cache is not None:
        state += 2 * rows * tokens * shapes.width * shapes.bytes_each
    stepping = rows * tokens * (WIDTHS_IN_A_BLOCK * shapes.width + 2 * shapes.hidden) * shapes.bytes_each
    at_once = min(latent_frames, shapes.decoded_at_once) * shapes.frames_multiple
    pixels = request.height * request.width
    layers = (min(pixels, shapes.tile_pixels) if in_tiles else pixels) * shapes.decoder_width * LAYERS_IN_A_DECODER
    copies = COPIES_OF_TILED_FRAMES if in_tiles else COPIES_OF_FRAMES
    decoding = 4 * (at_once * layers + 3 * copies * request.frames * pixels)
    return int(state + max(stepping, decoding))


class ClipMemoryBudget:
    """The bytes that clips in progress may take together. Thread-safe.

    Args:
        capacity: bytes for all clips together.
        tile_above: pixels of a frame above which clips are decoded in tiles even if they fit; 0 sets no such size.
    """

    def __init__(self, capacity: int, *, tile_above: int = 0) -> None:
        self.capacity = capacity
        self.tile_above = tile_above
        self._taken = 0
        self._queue: list[object] = []
        self._changed = threading.Condition()

    def check(self, request: ClipSize, shapes: Shapes) -> int:
        """Return the bytes that a request needs, and refuse one that would never fit.

        Raises:
            InvalidRequestError: it would never fit; names the nearest sizes that would.
        """
        need = self.bytes_needed(request, shapes)
        if need > self.capacity:
            raise InvalidRequestError(self._too_large(request, shapes, need), param="size", code="too_large")
        return need

    def in_tiles(self, request: ClipSize, shapes: Shapes) -> bool:
        """Return whether a clip is decoded in tiles. The answer does not depend on other clips in progress."""
        pixels = request.width * request.height
        if pixels <= shapes.tile_pixels or not shapes.tile_pixels:
            return False
        return 0 < self.tile_above < pixels or estimate(request, shapes) > self.capacity

    def bytes_needed(self, request: ClipSize, shapes: Shapes) -> int:
        """Return the bytes of a clip, decoded as `in_tiles` says."""
        return estimate(request, shapes, in_tiles=self.in_tiles(request, shapes))

    @contextlib.contextmanager
    def hold(self, request: ClipSize, shapes: Shapes, on_wait: Callable[[], None]) -> Iterator[None]:
        """Reserve the bytes of a request while the context is open; waits until enough bytes are free.

        Args:
            request: the clip to make.
            shapes: sizes of the model.
            on_wait: called repeatedly while the request waits; an exception that it raises ends the wait.

        Raises:
            InvalidRequestError: the request would never fit; names the nearest sizes that would.
        """
        need = self.check(request, shapes)
        with self._changed:
            ticket = object()
            self._queue.append(ticket)
            try:
                # In order of arrival, so that small clips do not starve a large one.
                while self._queue[0] is not ticket or self._taken + need > self.capacity:
                    self._changed.wait(CHECK_INTERVAL_S)
                    on_wait()
                self._taken += need
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= need
                self._changed.notify_all()

    def nearest(self, request: ClipSize, shapes: Shapes) -> tuple[int | None, tuple[int, int] | None]:
        """Return the most frames that fit at the request's size, and the largest size that fits with its frames.

        The size has the request's proportions. Each is None when nothing fits.
        """
        clip = ClipShape(request.width, request.height, request.frames, request.guidance_scale, request.step_cache)
        lengths = shapes.lengths or shapes.frames_multiple
        counts = range((request.frames - 1) // lengths * lengths + 1, 0, -lengths)
        frames = next((n for n in counts if self._fits(replace(clip, frames=n), shapes)), None)
        step = shapes.size_multiple
        for width in range(request.width // step * step, 0, -step):
            height = max(step, round(request.height * width / request.width / step) * step)
            if self._fits(replace(clip, width=width, height=height), shapes):
                return frames, (width, height)
        return frames, None

    def _fits(self, request: ClipSize, shapes: Shapes) -> bool:
        return self.bytes_needed(request, shapes) <= self.capacity

    def _too_large(self, request: ClipSize, shapes: Shapes, need: int) -> str:
        frames, size = self.nearest(request, shapes)
        text = (
            f"{request.frames} frames of {request.width}x{request.height} need about {need / GIB:.2f} GiB of memory "
            f"beside the model; there are {self.capacity / GIB:.2f} GiB"
        )
        instead = [f"at this size at most {frames} frames fit"] if frames else []
        instead += [f"of so many frames the largest `size` is {size[0]}x{size[1]}"] if size else []
        return f"{text}: {', '.join(instead) or 'the model has no room to make anything'}"
