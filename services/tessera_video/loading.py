"""The model as the settings ask for it: how its products, its attention and its kernels are computed.

Does not know jobs, nor what becomes of the model.
"""

from __future__ import annotations

from pathlib import Path

from tessera.device import Device
from tessera.engine.diffusion_family import FamilyModel
from tessera.engine.diffusion_pipeline import PipelineModel
from tessera.models.diffusion import Offloading, load
from tessera.models.diffusion_transformers import TransformerOptions
from tessera.settings_media import VideoSettings
from tessera_kernels import dispatch


def load_model(directory: Path, device: Device, settings: VideoSettings) -> FamilyModel | PipelineModel:
    """Load a pipeline for this process, which takes Triton's kernels or not from now on.

    Raises:
        ModelLoadError: see `tessera.models.diffusion.load`.
    """
    off = "the setting `video.kernels` is `reference`" if settings.kernels == "reference" else ""
    dispatch.without_triton(off)
    offloading = Offloading(settings.offload, settings.weights_bytes)
    return load(directory, device, TransformerOptions(settings.weights, settings.attention), offloading)


def computed_as(settings: VideoSettings) -> str:
    """What of the settings two workers must have in common to go on from each other's checkpoints."""
    return f"{settings.weights} {settings.attention} {settings.kernels}"
