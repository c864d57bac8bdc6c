"""Loads any Diffusers video pipeline from a directory: safetensors only, nothing remote, no code from the directory.

Pipelines of a family in `tessera.diffusion.families.registry` get our own step loop; every other video pipeline of
Diffusers runs through its own `__call__`, and the log says so. Knows no jobs and no result files.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tessera.device.hardware import Device, free_bytes
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import FAMILIES, family_of
from tessera.diffusion.loading.cpu import use_fast_operations
from tessera.diffusion.loading.offload_plan import (
    GIB,
    WEIGHTS_SHARE,
    OffloadMode,
    OffloadPlan,
    measure_weights,
    plan_offload,
)
from tessera.diffusion.loading.transformers import TransformerOptions, prepare
from tessera.diffusion.whole_pipeline import PipelineModel, unsupported_reason
from tessera.errors import ModelLoadError
from tessera.models.loading import WRONG_VALUES
from tessera.models.offload import OnDemandComponents
from tessera.tokenizer.model_files import read_object

logger = logging.getLogger(__name__)

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack"})
"""Suffixes of weight files that are never opened, because reading them can run code."""
LIBRARIES = frozenset({"diffusers", "transformers"})
"""Libraries whose classes a pipeline's components may name."""
AS_STORED = TransformerOptions()
"""Transformers with the weights of their files, and exact attention."""


@dataclass(frozen=True)
class OffloadOptions:
    """Limits on the weights that stay on the device.

    Attributes:
        how: see `tessera.diffusion.loading.offload_plan.plan_offload`.
        weights_bytes: bytes of the device for weights. 0 is `WEIGHTS_SHARE` of the free memory, and no limit on a CPU,
            where there is no other place for weights.
    """

    how: OffloadMode = "auto"
    weights_bytes: int = 0


def load(
    directory: Path,
    device: Device,
    options: TransformerOptions = AS_STORED,
    offloading: OffloadOptions = OffloadOptions(),
    *,
    without: Collection[str] = (),
) -> FamilyModel | PipelineModel:
    """Load a pipeline and choose its step loop: our own for a known family, else Diffusers'.

    Args:
        directory: a pipeline as `DiffusionPipeline.save_pretrained` writes it.
        device: the device that computes; the VAE stays in float32, as its authors run it.
        options: how the transformers are computed when the step loop is ours.
        offloading: how much of the device weights may take, and which weights are copied only when they are used.
        without: components whose name contains one of these words are not loaded.

    Raises:
        ModelLoadError: no pipeline, a class that Diffusers does not have, pickled or missing weights, a component that
            needs code from elsewhere, or more weights than memory. Names the cause and the remedy.
    """
    index = _read_index(directory)
    name = _checked_class(directory, index)
    _refuse_pickles(directory, index)
    family = family_of(name)
    missing = {part: None for part in _components(index) if any(word in part for word in without)}
    block_list = "" if family is None else family.block_list
    plan = _plan_weights(directory, device, options, offloading, block_list, missing)
    dtypes: Any = device.dtype if device.dtype == torch.float32 else {"default": device.dtype, "vae": torch.float32}
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # `dtype` is the newer name, which the oldest Diffusers that we support does not know.
            warnings.filterwarnings("ignore", message="`torch_dtype` is deprecated", category=FutureWarning)
            pipe = getattr(diffusers, name).from_pretrained(
                str(directory), torch_dtype=dtypes, use_safetensors=True, local_files_only=True, **missing
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, *WRONG_VALUES) as error:
        raise ModelLoadError(f"the pipeline in {directory} cannot be loaded: {error}") from error
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval().requires_grad_(requires_grad=False)
    if family is not None:
        prepare(pipe, family.block_list, device.place, options, plan.streamed)
    elif options != AS_STORED:
        logger.warning("%s is computed as Diffusers has it: %s is for pipelines that we step", name, options)
    _place(pipe, plan, device.place, ours=family is not None)
    pipe.set_progress_bar_config(disable=True)
    if device.place.type == "cpu" and isinstance(getattr(pipe, "vae", None), torch.nn.Module):
        logger.info("%d modules of the VAE compute with fast CPU operations", use_fast_operations(pipe.vae))
    if family is not None:
        return family(pipe, device.place)
    if reason := unsupported_reason(pipe):
        raise ModelLoadError(
            f"{directory} is a {name}, which cannot make videos here: {reason}; known are {', '.join(FAMILIES)}, and "
            f"Diffusers' other pipelines from text to video"
        )
    logger.warning("%s has no step loop of ours: it runs whole, one request at a time, through Diffusers' own", name)
    return PipelineModel(pipe, device.place)


def _plan_weights(
    directory: Path,
    device: Device,
    options: TransformerOptions,
    offloading: OffloadOptions,
    block_list: str,
    missing: Collection[str],
) -> OffloadPlan:
    """Plan where weights are kept, before any weight is read.

    Raises:
        ModelLoadError: the device or the host has too little memory.
    """
    itemsize = device.dtype.itemsize
    weights = measure_weights(directory, block_list, itemsize=itemsize, scheme=options.weights, missing=missing)
    budget = offloading.weights_bytes
    if device.place.type == "cpu" and not budget and offloading.how == "auto":
        return plan_offload(weights, 0, "none")
    plan = plan_offload(weights, budget or int(WEIGHTS_SHARE * free_bytes(device.place)), offloading.how)
    free = free_bytes(torch.device("cpu"))
    if plan.host_bytes > free:
        raise ModelLoadError(
            f"{plan.host_bytes / GIB:,.1f} GiB of weights have no room on the device and are to wait in the host's "
            f"memory, of which {free / GIB:,.1f} GiB are free"
        )
    logger.info("%s", plan)
    return plan


def _place(pipe: Any, plan: OffloadPlan, place: torch.device, *, ours: bool) -> None:
    """Move all components to where the plan keeps them; `prepare` has moved the streamed blocks already.

    Args:
        pipe: the pipeline, on the host but for the blocks that `prepare` has moved.
        plan: the plan to follow.
        place: the device.
        ours: whether the step loop is ours; Diffusers' loop takes Diffusers' own offloading.

    Raises:
        ModelLoadError: Diffusers' offloading was asked for on a CPU; it is for GPUs only.
    """
    if plan.everything_stays:
        pipe.to(place)
        return
    if not ours:
        if place.type == "cpu":
            raise ModelLoadError(
                f"{type(pipe).__name__} runs through Diffusers' own loop, which brings weights to GPUs alone: set "
                f"`video.offload` to `auto` and `video.weights_bytes` to 0"
            )
        pipe.enable_model_cpu_offload(device=place)
        return
    on_demand = OnDemandComponents(place)
    for name, component in pipe.components.items():
        if name in plan.on_demand:
            # A VAE is used through its encoder and decoder, any other component is called.
            on_demand.add(component, ("encode", "decode") if hasattr(component, "decode") else ("forward",))
        elif isinstance(component, torch.nn.Module):
            component.to(place)


def _read_index(directory: Path) -> dict[str, Any]:
    path = directory / "model_index.json"
    if not path.is_file():
        raise ModelLoadError(f"{directory} is no Diffusers pipeline: it has no readable model_index.json")
    return read_object(path)


def _checked_class(directory: Path, index: dict[str, Any]) -> str:
    """Return the pipeline's class name. Refuses classes that are not of Diffusers or Transformers."""
    name = index.get("_class_name")
    known = getattr(diffusers, name, None) if isinstance(name, str) else None
    if not (isinstance(known, type) and issubclass(known, diffusers.DiffusionPipeline)):
        raise ModelLoadError(
            f"{directory} names the pipeline class {name!r}, which diffusers {diffusers.__version__} does not have; "
            f"known are {', '.join(FAMILIES)}, and its other pipelines from text to video; code from model directories "
            f"is never run"
        )
    for component, library in _components(index).items():
        if library not in LIBRARIES:
            raise ModelLoadError(
                f"the component {component!r} of {directory} wants code from {library!r}; only components of "
                f"{' and '.join(sorted(LIBRARIES))} are loaded"
            )
    assert isinstance(name, str)
    return name


def _components(index: dict[str, Any]) -> dict[str, Any]:
    """Return the library of each component that the index names."""
    return {
        name: entry[0]
        for name, entry in index.items()
        if isinstance(entry, list) and len(entry) == 2 and entry[0] is not None
    }


def _refuse_pickles(directory: Path, index: dict[str, Any]) -> None:
    for component in _components(index):
        files = [path for path in (directory / component).glob("*") if path.is_file()]
        pickles = sorted(path.name for path in files if path.suffix in PICKLE_SUFFIXES)
        if pickles and not any(path.suffix == ".safetensors" for path in files):
            raise ModelLoadError(
                f"{directory / component / pickles[0]} is a pickle, which can run any code when it is opened; "
                f"save the pipeline with safe_serialization=True and take that"
            )
