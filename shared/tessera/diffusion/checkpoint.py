"""Saves a request between two steps to bytes and restores it: latents, random generator, and the whole scheduler state.

What follows from the request itself (encoded prompts, first frame, timesteps) is computed again, not saved. The format
is safetensors with JSON in its header, so loading it runs no code. The scheduler may be any of Diffusers': all its
attributes are saved, whatever their names. Does not know where the bytes are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tessera.diffusion.request import DiffusionState, ResumeError

FORM = "tessera.video.2"
"""Format and version that a checkpoint names; another one is refused."""
HEADER = "tessera"
"""Key of the JSON header in the metadata of the safetensors file."""
LENGTH_BYTES = 8
"""Bytes of the header's length at the start of a safetensors file, little-endian."""
DERIVED = frozenset({"_internal_dict", "config"})
"""Attributes of a scheduler that follow from its configuration and are not saved."""
TENSOR, ARRAY, TUPLE = "$tensor", "$array", "$tuple"
"""Keys of JSON objects that stand for values that JSON does not have."""


@dataclass(frozen=True)
class Snapshot:
    """A `FrozenRequest`. Shares tensors that no step changes in place, so taking a snapshot copies nothing large."""

    index: int
    latents_BCTHW: torch.Tensor
    generator: torch.Tensor
    scheduler: Mapping[str, Any]
    memory: Mapping[str, Any]

    def encode(self, identity: str) -> bytes:
        """Implement `FrozenRequest.encode`.

        Raises:
            TypeError: the scheduler has an attribute that is neither a tensor nor plain data.
        """
        tensors = {"latents": self.latents_BCTHW.cpu().contiguous(), "generator": self.generator}
        scheduler = {name: _plain(value, f"scheduler.{name}", tensors) for name, value in self.scheduler.items()}
        memory = {name: _plain(value, f"memory.{name}", tensors) for name, value in self.memory.items()}
        header: dict[str, Any] = {"form": FORM, "identity": identity, "index": self.index}
        header |= {"scheduler": scheduler, "memory": memory}
        header["digest"] = _digest(tensors)
        data: bytes = save_tensors(tensors, {HEADER: json.dumps(header)})
        return data

    def put_back(self, state: DiffusionState) -> None:
        """Restore the state that this snapshot was taken of, after one of its steps has failed halfway."""
        for name, value in self.scheduler.items():
            setattr(state.scheduler, name, _copied(value))
        state.latents_BCTHW, state.index, state.memory = self.latents_BCTHW, self.index, dict(self.memory)
        state.generator.set_state(self.generator)


def freeze(state: DiffusionState) -> Snapshot:
    """Take a snapshot of a state. Only valid between two steps."""
    remembered = {name: _copied(value) for name, value in vars(state.scheduler).items() if name not in DERIVED}
    return Snapshot(state.index, state.latents_BCTHW, state.generator.get_state(), remembered, dict(state.memory))


def restore(state: DiffusionState, data: bytes, identity: str) -> None:
    """Bring a state before its first step to the step at which an equal request was frozen.

    Args:
        state: changed in place; its request must equal the frozen one.
        data: checkpoint from `Snapshot.encode`.
        identity: the identity of this request, model and libraries, which must equal the encoded one.

    Raises:
        ResumeError: `data` is truncated, changed, or of another request.
    """
    tensors, header = _read(data)
    if header.get("identity") != identity:
        raise ResumeError("it is of another request, model or version")
    latents, remembered = tensors["latents"], header["scheduler"]
    if latents.shape != state.latents_BCTHW.shape or not 0 <= header["index"] <= len(state.timesteps):
        raise ResumeError("it does not fit the request")
    place = state.latents_BCTHW.device
    for name, value in remembered.items():
        setattr(state.scheduler, name, _real(value, tensors, place, getattr(state.scheduler, name, None)))
    state.memory = {name: _real(value, tensors, place, None) for name, value in header["memory"].items()}
    state.latents_BCTHW = latents.to(place)
    state.generator.set_state(tensors["generator"])
    state.index = header["index"]


def _read(data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        tensors = load_tensors(data)
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        file_header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
        header = json.loads(file_header["__metadata__"][HEADER])
    except (SafetensorError, ValueError, KeyError) as error:
        raise ResumeError(f"it cannot be read: {error}") from error
    if header.get("form") != FORM:
        raise ResumeError(f"it has the form {header.get('form')!r}, not {FORM!r}")
    if header.get("digest") != _digest(tensors):
        raise ResumeError("its checksum is wrong")
    return tensors, header


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _copied(value: Any) -> Any:
    """Copy a list, because schedulers change lists in place; tensors in it they do not change."""
    return list(value) if isinstance(value, list) else value


def _plain(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as plain JSON; its tensors are added to `tensors` under `name`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        # A copy, because safetensors refuses two tensors that share memory.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {TENSOR: name, "moved": value.device.type != "cpu"}
    if isinstance(value, np.ndarray | np.generic):
        tensors[name] = torch.from_numpy(np.array(value))
        return {ARRAY: name}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be kept")


def _real(value: Any, tensors: Mapping[str, torch.Tensor], place: torch.device, current: Any) -> Any:
    """Return the value that `_plain` encoded; a tensor goes to the device of `current`, if that is a tensor."""
    if isinstance(value, list):
        return [_real(item, tensors, place, None) for item in value]
    if not isinstance(value, dict):
        return value
    if TUPLE in value:
        return tuple(_real(item, tensors, place, None) for item in value[TUPLE])
    if ARRAY in value:
        array = tensors[value[ARRAY]].numpy()
        return array if array.ndim else array[()]
    tensor = tensors[value[TENSOR]]
    # Some tables of schedulers stay on the CPU whatever the device.
    at = current.device if isinstance(current, torch.Tensor) else place if value["moved"] else torch.device("cpu")
    return tensor.to(at)
