"""Reads low-rank adapters (LoRA) of video models: safetensors files, checked by their headers before a tensor is read.

Names of layers are Diffusers'; files that were written with other names are turned by the pipeline class of Diffusers
that can. Every layer of a file must be a linear layer of the model, of its size: nothing is passed over in silence.
Does not know requests.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from tessera.diffusion.families.base import FamilyModel
from tessera.errors import ModelLoadError
from tessera.hub.cards import sha256_of
from tessera.models.lora import LowRank

MOST_BYTES = 8 * 2**30
MOST_TENSORS = 50_000
MOST_RANK = 2048
KINDS = frozenset({"F32", "F16", "BF16"})
METADATA = "lora_adapter_metadata"
OTHER_METHODS = ("dora_scale", "lora_magnitude_vector", "lokr_", "hada_", "oft_")
_KEY = re.compile(r"^(?P<expert>transformer|transformer_2)\.(?P<layer>.+)\.lora_(?P<side>A|B)\.(?P<kind>weight|bias)$")
_LARGE_NUMBER = re.compile(r"\d{5}")
_LITERAL = re.compile(r"^\^?[A-Za-z0-9_.]+$")

TensorShapes = Mapping[str, Sequence[int]]


def load_adapters(model: FamilyModel, files: Mapping[str, Mapping[int, Path]]) -> None:
    """Make adapters known to a model, before its first pass.

    Args:
        model: whose layers they change.
        files: by name and expert, as `tessera.hub.adapters.adapter_files` gives them.

    Raises:
        ModelLoadError: a file is missing, damaged, too large, or no adapter of this model; names file and layer.
    """
    for name, of_experts in files.items():
        for expert, path in of_experts.items():
            _load(model, name, expert, path)


@dataclass
class _Header:
    shapes: dict[str, list[int]]
    config: dict[str, Any]
    """What PEFT was told when the adapter was trained, where the file says."""


@dataclass
class _Parts:
    """Of one layer: the tensors of a file, by side and kind."""

    layer: str
    prefix: str
    """What a file calls the layer's expert."""
    shapes: dict[str, Sequence[int]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


def _load(model: FamilyModel, name: str, expert: int, path: Path) -> None:
    header = _header(path)
    if all(_KEY.match(key) for key in header.shapes):
        _layers(model, expert, path, header.shapes)  # before anything is read
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"the adapter {path} cannot be read: {error}") from error
    tensors = _with_diffusers_names(model, path, tensors)
    found = _layers(model, expert, path, {key: list(tensor.shape) for key, tensor in tensors.items()})
    layers: dict[torch.nn.Module, LowRank] = {}
    for module, parts in found:
        side = {which: tensors[key].to(model.device, model.dtype) for which, key in parts.keys.items()}
        if not all(bool(tensor.isfinite().all()) for tensor in side.values()):
            raise ModelLoadError(f"the adapter {path} has numbers that are not finite in the layer {parts.layer!r}")
        scale = _scale(path, parts, header.config, rank=len(side["A.weight"]))
        layers[module] = LowRank(side["A.weight"], side["B.weight"], side.get("B.bias"), scale)
    model.adapters.add(name, f"{expert}:{sha256_of(path)} ", layers)


def _header(path: Path) -> _Header:
    if path.suffix != ".safetensors":
        raise ModelLoadError(f"the adapter {path} is no .safetensors file, and nothing else is opened: convert it")
    if not path.is_file():
        raise ModelLoadError(f"there is no adapter {path}; mend `video.adapters`")
    if path.stat().st_size > MOST_BYTES:
        raise ModelLoadError(f"the adapter {path} has {path.stat().st_size} bytes; the limit is {MOST_BYTES}")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            kinds = {key: part.get_dtype() for key, part in slices.items()}
            shapes = {key: list(part.get_shape()) for key, part in slices.items()}
        config = json.loads(metadata.get(METADATA, "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(f"the adapter {path} is damaged, or no safetensors file: {error}") from error
    if not shapes or len(shapes) > MOST_TENSORS:
        raise ModelLoadError(f"the adapter {path} has {len(shapes)} tensors; there must be 1 to {MOST_TENSORS}")
    for key, shape in shapes.items():
        if any(method in key for method in OTHER_METHODS):
            raise ModelLoadError(f"the adapter {path} is no plain LoRA: it has {key!r}; merge it, or take a LoRA")
        if _LARGE_NUMBER.search(key):
            # What turns names counts up to the last block.
            raise ModelLoadError(f"the adapter {path} has {key!r}, and no model has so many layers")
        if kinds[key] not in KINDS or len(shape) > 2:
            raise ModelLoadError(
                f"the adapter {path} has {kinds[key]} of shape {shape} in {key!r}; only layers of one or two "
                f"dimensions in {', '.join(sorted(KINDS))} are taken"
            )
    if not isinstance(config, dict):
        raise ModelLoadError(f"the adapter {path} has a {METADATA} that is no JSON object")
    return _Header(shapes, config)


def _with_diffusers_names(model: FamilyModel, path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With Diffusers' names."""
    if all(_KEY.match(key) for key in tensors):
        return tensors
    rotate = getattr(type(model.pipe), "lora_state_dict", None)
    strange = next(key for key in tensors if not _KEY.match(key))
    if rotate is None:
        raise ModelLoadError(f"the adapter {path} has {strange!r}, which is no layer's name in Diffusers: convert it")
    try:
        turned: dict[str, torch.Tensor] = rotate(tensors)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError, RuntimeError, AssertionError) as error:
        raise ModelLoadError(
            f"the adapter {path} has {strange!r}, and Diffusers cannot read it for a {type(model.pipe).__name__}: "
            f"{error!r}"
        ) from error
    return turned


def _layers(model: FamilyModel, expert: int, path: Path, shapes: TensorShapes) -> list[tuple[Any, _Parts]]:
    """The linear layers that a file changes, with what it has for each.

    Raises:
        ModelLoadError: a layer is not the model's, not linear, of another size, or has only one side.
    """
    found: dict[tuple[int, str], _Parts] = {}
    for key, shape in shapes.items():
        match = _KEY.match(key)
        if match is None:
            raise ModelLoadError(f"the adapter {path} has {key!r}, which is no layer of the model's transformer")
        place = (1 if match["expert"] == "transformer_2" else expert, match["layer"])
        parts = found.setdefault(place, _Parts(match["layer"], match["expert"]))
        side = f"{match['side']}.{match['kind']}"
        if side in parts.keys:
            raise ModelLoadError(f"the adapter {path} has {key!r} and {parts.keys[side]!r} for one layer")
        parts.shapes[side], parts.keys[side] = shape, key
    known = [model.linear_layers(component) for component in model.expert_components()]
    answer = []
    for (number, layer), parts in found.items():
        if number >= len(known):
            raise ModelLoadError(f"the adapter {path} is for a second expert (layer {layer!r}); the model has one")
        module = known[number].get(layer)
        if module is None:
            raise ModelLoadError(f"the adapter {path} changes {layer!r}, which is no linear layer of this model")
        _check_sizes(path, parts, module.in_features, module.out_features)
        answer.append((module, parts))
    return answer


def _check_sizes(path: Path, parts: _Parts, inputs: int, outputs: int) -> None:
    layer, down, up = parts.layer, parts.shapes.get("A.weight"), parts.shapes.get("B.weight")
    if down is None or up is None:
        raise ModelLoadError(f"the adapter {path} has only one side of the layer {layer!r}")
    if len(down) != 2 or len(up) != 2 or (down[1], up[0]) != (inputs, outputs) or down[0] != up[1]:
        raise ModelLoadError(
            f"the adapter {path} has {list(down)} and {list(up)} for the layer {layer!r}, which takes {inputs} numbers "
            f"and gives {outputs}: it is of another model"
        )
    if not 1 <= down[0] <= MOST_RANK:
        raise ModelLoadError(f"the adapter {path} has rank {down[0]} in {layer!r}; it may be 1 to {MOST_RANK}")
    if "A.bias" in parts.shapes or list(parts.shapes.get("B.bias", [outputs])) != [outputs]:
        raise ModelLoadError(f"the adapter {path} has a bias of the layer {layer!r} that does not fit it")


def _scale(path: Path, parts: _Parts, config: Mapping[str, Any], *, rank: int) -> float:
    """Alpha over rank of a layer, as PEFT has it; 1 where a file does not say."""
    layer, prefix = parts.layer, f"{parts.prefix}."
    own = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
    if own.get("use_dora"):
        raise ModelLoadError(f"the adapter {path} is a DoRA; merge it, or take a LoRA")
    alpha = own.get("lora_alpha", rank)
    patterns = own.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ModelLoadError(f"the adapter {path} has an alpha_pattern that is no JSON object")
    for pattern, value in patterns.items():
        if not _LITERAL.match(pattern):
            raise ModelLoadError(
                f"the adapter {path} has the alpha_pattern {pattern!r}; only names of layers are taken"
            )
        exact = pattern.removeprefix("^")
        if layer == exact or (exact == pattern and layer.endswith(f".{exact}")):
            alpha = value
            break
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelLoadError(f"the adapter {path} has the alpha {alpha!r} for the layer {layer!r}; it is a number")
    return float(alpha) / (math.sqrt(rank) if own.get("use_rslora") else rank)
