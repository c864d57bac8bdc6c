"""Decoding in tiles, as Diffusers' VAEs do it: less memory for large frames, blended where tiles meet.

Does not decide which clips (`tessera.hub.clip_memory`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def tile_pixels(vae: Any) -> int:
    """Pixels of one tile; 0: this VAE has none, or tiles of sizes that do not meet."""
    if not hasattr(vae, "enable_tiling") or not all(_meet(vae, side) for side in ("height", "width")):
        return 0
    return int(getattr(vae, "tile_sample_min_height", 0)) * int(getattr(vae, "tile_sample_min_width", 0))


def _meet(vae: Any, side: str) -> bool:
    """Whether tiles lie as far apart as what is kept of each: else Diffusers puts together a frame of another size."""
    sample, latent = (getattr(vae, f"tile_{kind}_min_{side}", 0) for kind in ("sample", "latent"))
    overlap = getattr(vae, f"tile_overlap_factor_{side}", getattr(vae, "tile_overlap_factor", None))
    if not latent or overlap is None:
        return True  # those say the distance itself
    return bool(int(latent * (1 - overlap)) * sample == (sample - int(sample * overlap)) * latent)


@contextlib.contextmanager
def decoding(vae: Any, *, in_tiles: bool) -> Iterator[None]:
    """While a VAE decodes. Whoever calls sees to it that it decodes nothing else meanwhile."""
    if not in_tiles or not tile_pixels(vae):
        yield
        return
    before = vae.use_tiling
    vae.enable_tiling()
    try:
        yield
    finally:
        vae.use_tiling = before
