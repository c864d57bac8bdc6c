"""Checkpoints of a training stage: weights, optimizers and the number of the next step in one safetensors file.

Nothing is pickled. A new checkpoint is written beside the old one and renamed, so that a killed run finds the last
complete one. Knows nothing about what is trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tessera.errors import ModelLoadError

NEW_SUFFIX = ".new"


@dataclass(frozen=True)
class Position:
    """How far a stage is: the steps that are done, and the seconds that they took in all runs."""

    index: int
    seconds: float


def save(
    path: Path,
    modules: dict[str, nn.Module],
    optimizers: dict[str, torch.optim.Optimizer],
    position: Position,
) -> None:
    """Write a checkpoint that replaces the one at `path`."""
    tensors: dict[str, torch.Tensor] = {}
    for name, module in modules.items():
        for key, value in module.state_dict().items():
            tensors[f"module/{name}/{key}"] = _own(value)
    described: dict[str, Any] = {}
    for name, optimizer in optimizers.items():
        state = optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer/{name}/{index}/{key}"] = _own(value)
                else:
                    numbers.setdefault(str(index), {})[key] = value
        described[name] = {"groups": state["param_groups"], "numbers": numbers}
    new = path.with_name(path.name + NEW_SUFFIX)
    metadata = {
        "index": str(position.index),
        "seconds": str(position.seconds),
        "optimizers": json.dumps(described),
    }
    save_file(tensors, new, metadata=metadata)
    new.replace(path)


def load(
    path: Path, modules: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer], device: torch.device
) -> Position | None:
    """Load the checkpoint at `path` into modules and optimizers. Returns None when there is no checkpoint.

    Raises:
        ModelLoadError: the checkpoint is damaged or belongs to another recipe; says how to begin anew.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata: dict[str, str] = file.metadata()
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no dict
        for name, module in modules.items():
            module.load_state_dict(_part(tensors, f"module/{name}/"))
        described: dict[str, Any] = json.loads(metadata["optimizers"])
        for name, optimizer in optimizers.items():
            state: dict[int, dict[str, Any]] = {
                int(index): dict(values) for index, values in described[name]["numbers"].items()
            }
            for key, tensor in _part(tensors, f"optimizer/{name}/").items():
                index, _, entry = key.partition("/")
                state.setdefault(int(index), {})[entry] = tensor
            optimizer.load_state_dict({"state": state, "param_groups": described[name]["groups"]})
        return Position(int(metadata["index"]), float(metadata["seconds"]))
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelLoadError(
            f"the checkpoint {path} does not fit this recipe or is damaged ({reason}); `--fresh` begins anew"
        ) from error


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares memory with no other: safetensors refuses tied weights."""
    return tensor.detach().clone().contiguous()


def _part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
