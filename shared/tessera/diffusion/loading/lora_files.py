"""Reads low-rank adapters (LoRA) of video models from safetensors files, and checks headers before reading tensors.

Layers are named as in Diffusers; files with other names are converted by Diffusers' pipeline class if it can. Every
layer of a file must be a linear layer of the model with the same size: no layer is ignored silently. Knows no requests.
"""

from __future__ import annotations

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
from tessera.tokenizer.model_files import parse_json

MAX_BYTES = 8 * 2**30
"""Largest adapter file, in bytes."""
MAX_TENSORS = 50_000
"""Most tensors in one adapter file."""
MAX_RANK = 2048
"""Largest rank of an adapter's layer."""
DTYPES = frozenset({"F32", "F16", "BF16"})
"""Dtypes of an adapter's tensors, as safetensors names them."""
METADATA = "lora_adapter_metadata"
"""Metadata field in which Diffusers stores PEFT's configuration."""
OTHER_METHODS = ("dora_scale", "lora_magnitude_vector", "lokr_", "hada_", "oft_")
"""Parts of tensor names by which methods other than plain LoRA are recognized."""
_KEY = re.compile(r"^(?P<expert>transformer|transformer_2)\.(?P<layer>.+)\.lora_(?P<side>A|B)\.(?P<kind>weight|bias)$")
_LARGE_NUMBER = re.compile(r"\d{5}")
_LITERAL = re.compile(r"^\^?[A-Za-z0-9_.]+$")

TensorShapes = Mapping[str, Sequence[int]]
"""Shape of each tensor of a file by its name."""


def load_adapters(model: FamilyModel, files: Mapping[str, Mapping[int, Path]]) -> None:
    """Load adapters into a model, before its first pass.

    Args:
        model: the model whose layers the adapters change.
        files: paths by adapter name and expert, as `tessera.hub.adapters.adapter_files` returns them.

    Raises:
        ModelLoadError: a file is missing, damaged, too large, or no adapter of this model; names file and layer.
    """
    for name, by_expert in files.items():
        for expert, path in by_expert.items():
            _load(model, name, expert, path)


@dataclass
class _Header:
    shapes: dict[str, list[int]]
    config: dict[str, Any]
    """PEFT's configuration of the training; empty when the file has none."""


@dataclass
class _Parts:
    """The tensors of a file that belong to one layer, by side and kind (`A.weight`, `B.weight`, `B.bias`)."""

    layer: str
    prefix: str
    """Name of the layer's transformer in the file: `transformer` or `transformer_2`."""
    shapes: dict[str, Sequence[int]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """Full names of the tensors in the file."""


def _load(model: FamilyModel, name: str, expert: int, path: Path) -> None:
    header = _header(path)
    if all(_KEY.match(key) for key in header.shapes):
        _layers(model, expert, path, header.shapes)  # checks the shapes before any tensor is read
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
    if path.stat().st_size > MAX_BYTES:
        raise ModelLoadError(f"the adapter {path} has {path.stat().st_size} bytes; the limit is {MAX_BYTES}")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            dtypes = {key: part.get_dtype() for key, part in slices.items()}
            shapes = {key: list(part.get_shape()) for key, part in slices.items()}
        config = parse_json(metadata.get(METADATA, "{}").encode(), f"{METADATA} of {path}")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(f"the adapter {path} is damaged, or no safetensors file: {error}") from error
    if not shapes or len(shapes) > MAX_TENSORS:
        raise ModelLoadError(f"the adapter {path} has {len(shapes)} tensors; there must be 1 to {MAX_TENSORS}")
    for key, shape in shapes.items():
        if any(method in key for method in OTHER_METHODS):
            raise ModelLoadError(f"the adapter {path} is no plain LoRA: it has {key!r}; merge it, or take a LoRA")
        if _LARGE_NUMBER.search(key):
            # Diffusers' conversion of names loops up to the last block.
            raise ModelLoadError(f"the adapter {path} has {key!r}, and no model has so many layers")
        if dtypes[key] not in DTYPES or len(shape) > 2:
            raise ModelLoadError(
                f"the adapter {path} has {dtypes[key]} of shape {shape} in {key!r}; only layers of one or two "
                f"dimensions in {', '.join(sorted(DTYPES))} are taken"
            )
    if not isinstance(config, dict):
        raise ModelLoadError(f"the adapter {path} has a {METADATA} that is no JSON object")
    return _Header(shapes, config)


def _with_diffusers_names(model: FamilyModel, path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under Diffusers' names."""
    if all(_KEY.match(key) for key in tensors):
        return tensors
    convert = getattr(type(model.pipe), "lora_state_dict", None)
    strange = next(key for key in tensors if not _KEY.match(key))
    if convert is None:
        raise ModelLoadError(f"the adapter {path} has {strange!r}, which is no layer's name in Diffusers: convert it")
    try:
        converted: dict[str, torch.Tensor] = convert(tensors)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError, RuntimeError, AssertionError) as error:
        raise ModelLoadError(
            f"the adapter {path} has {strange!r}, and Diffusers cannot read it for a {type(model.pipe).__name__}: "
            f"{error!r}"
        ) from error
    return converted


def _layers(model: FamilyModel, expert: int, path: Path, shapes: TensorShapes) -> list[tuple[Any, _Parts]]:
    """Return the linear layers that a file changes, each with its tensors in the file.

    Raises:
        ModelLoadError: a layer is not in the model, not linear, of another size, or has only one side.
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
    if not 1 <= down[0] <= MAX_RANK:
        raise ModelLoadError(f"the adapter {path} has rank {down[0]} in {layer!r}; it may be 1 to {MAX_RANK}")
    if "A.bias" in parts.shapes or list(parts.shapes.get("B.bias", [outputs])) != [outputs]:
        raise ModelLoadError(f"the adapter {path} has a bias of the layer {layer!r} that does not fit it")


def _scale(path: Path, parts: _Parts, config: Mapping[str, Any], *, rank: int) -> float:
    """Return a layer's scale: alpha divided by rank, as PEFT defines it; 1 when the file gives no alpha."""
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
