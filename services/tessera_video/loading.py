"""The model as the settings ask for it: how its products, its attention and its kernels are computed.

Does not know jobs, nor what becomes of the model.
"""

from __future__ import annotations

from pathlib import Path

from tessera.device.hardware import Device
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.loading.pipeline import OffloadOptions, load
from tessera.diffusion.loading.transformers import TransformerOptions
from tessera.diffusion.whole_pipeline import PipelineModel
from tessera.errors import ModelLoadError
from tessera.settings.video import VideoSettings
from tessera_kernels import dispatch

ENCODERS = ("text_encoder", "image_encoder")


def load_model(
    directory: Path, device: Device, settings: VideoSettings, *, passes_alone: bool = False
) -> FamilyModel | PipelineModel:
    """Load a pipeline for this process, which takes Triton's kernels or not from now on.

    Args:
        directory: of the pipeline.
        device: where it goes.
        settings: how it is computed.
        passes_alone: whether nothing but passes are computed here: prompts are encoded elsewhere.

    Raises:
        ModelLoadError: see `tessera.diffusion.loading.pipeline.load`; or settings that do not go together.
    """
    shared = settings.devices > 1
    if shared and settings.attention != "exact":
        raise ModelLoadError("`video.attention` is for one device: set it to `exact`, or `video.devices` to 1")
    if shared and settings.step_cache != "off":
        raise ModelLoadError("`video.step_cache` is for one device: set it to `off`, or `video.devices` to 1")
    off = "the setting `video.kernels` is `reference`" if settings.kernels == "reference" else ""
    dispatch.disable_triton(off)
    offloading = OffloadOptions(settings.offload, settings.weights_bytes)
    options = TransformerOptions(settings.weights, settings.attention, fused=not shared)
    return load(directory, device, options, offloading, without=ENCODERS if passes_alone else ())


def computation_key(settings: VideoSettings) -> str:
    """What of the settings two workers must have in common to go on from each other's checkpoints."""
    return f"{settings.weights} {settings.attention} {settings.kernels} {settings.devices}"
