"""Loads the model as the settings say: weights, attention, kernels, offloading and devices.

Knows no jobs, and not what the model is used for.
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
"""Words in the names of components that only encode prompts and first frames."""


def load_model(
    directory: Path, device: Device, settings: VideoSettings, *, passes_alone: bool = False
) -> FamilyModel | PipelineModel:
    """Load a pipeline, and turn Triton's kernels on or off for this process.

    Args:
        directory: the pipeline's directory.
        device: the device that computes.
        settings: how the pipeline is computed.
        passes_alone: whether this process only computes passes, so that text and image encoders are not loaded.

    Raises:
        ModelLoadError: see `tessera.diffusion.loading.pipeline.load`; or settings that contradict each other.
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
    """Return the settings that two workers must share to resume from each other's checkpoints."""
    return f"{settings.weights} {settings.attention} {settings.kernels} {settings.devices}"
