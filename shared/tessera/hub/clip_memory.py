"""How much memory a clip takes, told from shapes before it is begun, and room for so many clips at once.

An estimate: what a pass through one block holds at a time, the decoder's widest layers for the frames that it makes at
once, and the finished frames. It errs upwards by design, and knows nothing of what an allocator wastes. Does not know a
family of models, nor where the free bytes come from (`tessera.device.hardware`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.errors import InvalidRequestError

WIDTHS_IN_A_BLOCK = 10
"""Tensors of the model's width that a block holds at once: stream, norm, queries, keys, values, copies, residuals."""
LAYERS_IN_A_DECODER = 5
"""Tensors of the decoder's width at full resolution that it holds at once, one of them in columns."""
COPIES_OF_FRAMES = 3
"""Decoded, as float32 for whoever asked, and as bytes."""
COPIES_OF_TILED_FRAMES = 6
"""Where they are put together from tiles: all tiles, which overlap, and the rows of them."""
COPIES_OF_LATENTS = 8
"""With what schedulers remember."""
LOOK_EVERY_S = 0.5
GIB = 2**30


@dataclass(frozen=True)
class Shapes:
    """What the estimate needs to know of a model."""

    frames_multiple: int
    """Frames a latent frame."""
    spatial: int
    """Pixels of a latent's side."""
    patch: int
    """Latents a token has."""
    size_multiple: int
    channels: int
    width: int
    hidden: int
    """Width of the feed-forward layer."""
    decoder_width: float
    """Channels at full resolution: a quarter of them where the decoder ends at half of it."""
    decoded_at_once: int
    """Latent frames."""
    bytes_each: int
    """Of a number in the transformer."""
    tile_pixels: int = 0
    """Of a tile that its decoder can work on by itself; 0: it cannot."""
    lengths: int = 0
    """Clips have k times this plus one frames; 0: as a latent frame has."""


class ClipSize(Protocol):
    """What the estimate reads of a request: `ClipShape` has it, and so has `DiffusionRequest`, which needs torch."""

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
    """The size of a clip that is only asked about."""

    width: int
    height: int
    frames: int
    guidance_scale: float
    step_cache: object | None = None


def estimate(request: ClipSize, shapes: Shapes, *, in_tiles: bool = False) -> int:
    """Bytes beside the weights, at the worst moment of a clip, decoded whole or in tiles."""
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
    """Bytes that clips under way may take together. Safe in several threads.

    Args:
        capacity: in all.
        tile_above: pixels of a frame above which clips are decoded in tiles though they fit; 0: no such size.
    """

    def __init__(self, capacity: int, *, tile_above: int = 0) -> None:
        self.capacity = capacity
        self.tile_above = tile_above
        self._taken = 0
        self._line: list[object] = []
        self._changed = threading.Condition()

    def check(self, request: ClipSize, shapes: Shapes) -> int:
        """Refuse what would never fit. Returns the bytes of what does.

        Raises:
            InvalidRequestError: says what would.
        """
        need = self.bytes_needed(request, shapes)
        if need > self.capacity:
            raise InvalidRequestError(self._too_large(request, shapes, need), param="size", code="too_large")
        return need

    def in_tiles(self, request: ClipSize, shapes: Shapes) -> bool:
        """Whether a clip is decoded in tiles. Says the same of a request whatever else is under way."""
        pixels = request.width * request.height
        if pixels <= shapes.tile_pixels or not shapes.tile_pixels:
            return False
        return 0 < self.tile_above < pixels or estimate(request, shapes) > self.capacity

    def bytes_needed(self, request: ClipSize, shapes: Shapes) -> int:
        """Bytes of a clip, decoded as `in_tiles` says."""
        return estimate(request, shapes, in_tiles=self.in_tiles(request, shapes))

    @contextlib.contextmanager
    def hold(self, request: ClipSize, shapes: Shapes, look: Callable[[], None]) -> Iterator[None]:
        """Hold the bytes of a request; waits until others have left enough.

        Args:
            request: what is to be made.
            shapes: of the model.
            look: called while it waits; what it raises ends the wait.

        Raises:
            InvalidRequestError: it would never fit; says what would.
        """
        need = self.check(request, shapes)
        with self._changed:
            place = object()
            self._line.append(place)
            try:
                # In the order of arrival, so that small ones do not keep a large one out for ever.
                while self._line[0] is not place or self._taken + need > self.capacity:
                    self._changed.wait(LOOK_EVERY_S)
                    look()
                self._taken += need
            finally:
                self._line.remove(place)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= need
                self._changed.notify_all()

    def nearest(self, request: ClipSize, shapes: Shapes) -> tuple[int | None, tuple[int, int] | None]:
        """The most frames that fit at the request's size, and the largest size of its proportions at its frames."""
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
        said = (
            f"{request.frames} frames of {request.width}x{request.height} need about {need / GIB:.2f} GiB of memory "
            f"beside the model; there are {self.capacity / GIB:.2f} GiB"
        )
        instead = [f"at this size at most {frames} frames fit"] if frames else []
        instead += [f"of so many frames the largest `size` is {size[0]}x{size[1]}"] if size else []
        return f"{said}: {', '.join(instead) or 'the model has no room to make anything'}"
