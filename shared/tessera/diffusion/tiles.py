"""Decodes in tiles with Diffusers' VAEs: large frames take less memory, and tiles are blended where they overlap.

Does not decide which clips are decoded so (`tessera.hub.clip_memory` does).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def tile_pixels(vae: Any) -> int:
    """Return the pixels of one tile; 0 when the VAE has no tiles, or tiles that do not fit together."""
    if not hasattr(vae, "enable_tiling") or not all(_tiles_fit(vae, side) for side in ("height", "width")):
        return 0
    return int(getattr(vae, "tile_sample_min_height", 0)) * int(getattr(vae, "tile_sample_min_width", 0))


def _tiles_fit(vae: Any, side: str) -> bool:
    """Return whether the distance of two tiles equals the part that is kept of each.

    Otherwise Diffusers would assemble a frame of another size.
    """
    sample, latent = (getattr(vae, f"tile_{kind}_min_{side}", 0) for kind in ("sample", "latent"))
    overlap = getattr(vae, f"tile_overlap_factor_{side}", getattr(vae, "tile_overlap_factor", None))
    if not latent or overlap is None:
        return True  # such VAEs have the distance itself as a setting
    return bool(int(latent * (1 - overlap)) * sample == (sample - int(sample * overlap)) * latent)


@contextlib.contextmanager
def decoding(vae: Any, *, in_tiles: bool) -> Iterator[None]:
    """Turn tiling on while a VAE decodes. The caller makes sure that the VAE decodes nothing else meanwhile."""
    if not in_tiles or not tile_pixels(vae):
        yield
        return
    before = vae.use_tiling
    vae.enable_tiling()
    try:
        yield
    finally:
        vae.use_tiling = before
