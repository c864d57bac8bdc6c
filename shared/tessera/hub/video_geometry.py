"""Derives frame and pixel multiples of a Diffusers video pipeline from the configurations in its directory.

Values that a configuration lacks (older ones lack the VAE's factors) come from tables by class. Loads no weights and
does not import Diffusers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from tessera.tokenizer.model_files import MAX_NUMBER, read_object_if_there, whole_number

VAE_FACTORS = {
    "AutoencoderKLWan": (4, 8),
    "AutoencoderKLHunyuanVideo": (4, 8),
    "AutoencoderKLHunyuanVideo15": (4, 16),
    "AutoencoderKLCogVideoX": (4, 8),
    "AutoencoderKLLTXVideo": (8, 32),
    "AutoencoderKLMochi": (6, 8),
}
"""Frames per latent frame, and pixels per side of a latent, by class of the VAE."""
PAIRED_FRAMES = frozenset({"AutoencoderKLCogVideoX"})
"""VAEs that decode the latent frames after the first in pairs; other lengths are cut from a longer clip."""
FRAMES_PER_SECOND = {"Wan": 16, "LTX": 24, "CogVideoX": 8, "Hunyuan": 24, "Mochi": 30}
"""Frames per second that a family was trained with, by the beginning of its pipeline's class name."""
FALLBACK_FACTORS = (1, 8)
"""Factors of a VAE class that `VAE_FACTORS` does not list."""
FALLBACK_FRAMES_PER_SECOND = 16
"""Frames per second of a family that `FRAMES_PER_SECOND` does not list."""


class VideoGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of `tessera.wire.models.Card` that only video models have."""

    fps: int
    frames_multiple: int
    size_multiple: int
    image_input: Literal["none", "optional", "required"]
    guidance_scale: float | None
    """Guidance scale that the pipeline's guider names; None without a guider."""
    experts: int


def video_geometry(directory: Path, family: str) -> VideoGeometry:
    """Read the geometry from a pipeline's configurations.

    Args:
        directory: the pipeline's directory.
        family: class name of the pipeline.

    Raises:
        ModelLoadError: a configuration is damaged, or has no size where one must be.
    """
    vae, transformer = _config(directory / "vae"), _config(directory / "transformer")
    path = directory / "vae" / "config.json"
    temporal, spatial = VAE_FACTORS.get(str(vae.get("_class_name")), FALLBACK_FACTORS)
    temporal = _number(vae, ("scale_factor_temporal", "temporal_compression_ratio"), temporal, path)
    spatial = _number(vae, ("scale_factor_spatial", "spatial_compression_ratio"), spatial, path)
    patch = _patch(transformer.get("patch_size", 1), directory / "transformer" / "config.json")
    if str(vae.get("_class_name")) in PAIRED_FRAMES:
        temporal *= 2
    fps = [value for name, value in FRAMES_PER_SECOND.items() if family.startswith(name)]
    return VideoGeometry(
        fps=fps[0] if fps else FALLBACK_FRAMES_PER_SECOND,
        frames_multiple=temporal,
        size_multiple=max(2, spatial * patch),
        image_input=_image_input(directory, family),
        guidance_scale=_guidance_scale(directory),
        experts=2 if _config(directory, "model_index.json").get("boundary_ratio") is not None else 1,
    )


def _image_input(directory: Path, family: str) -> Literal["none", "optional", "required"]:
    if "ImageToVideo" in family:
        return "required"
    # LTX and Wan 2.2's small model: a timestep for each token, so that a first frame can be there from the start.
    masked = family == "WanPipeline" and _config(directory, "model_index.json").get("expand_timesteps") is True
    return "optional" if masked or family == "LTXPipeline" else "none"


def _guidance_scale(directory: Path) -> float | None:
    scale = _config(directory / "guider", "guider_config.json").get("guidance_scale")
    # NaN is not below any number.
    return float(scale) if isinstance(scale, int | float) and abs(scale) <= MAX_NUMBER else None


def _config(directory: Path, name: str = "config.json") -> dict[str, Any]:
    return read_object_if_there(directory / name)


def _patch(size: Any, path: Path) -> int:
    sizes = size if isinstance(size, list) and size else [size]
    return max(whole_number(one, f"`patch_size` of {path}", least=1) for one in sizes)


def _number(config: dict[str, Any], names: tuple[str, ...], fallback: int, path: Path) -> int:
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    return whole_number(found[0], f"`{names[0]}` of {path}", least=1) if found else fallback
