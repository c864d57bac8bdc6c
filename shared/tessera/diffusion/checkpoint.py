"""A request between two steps as bytes, and back: latents, the random generator, all that the scheduler and
the steps remember.

What follows from the request itself (prompts, first frame, timesteps) is made again, not kept. A safetensors file, so
nothing in it is ever run; its values are tensors and plain JSON. A scheduler is any of Diffusers': its attributes are
kept, whatever they are called. Does not know where the bytes go.
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
HEADER = "tessera"
LENGTH_BYTES = 8
NOT_KEPT = frozenset({"_internal_dict", "config"})
"""Attributes of a scheduler that follow from its configuration."""
TENSOR, ARRAY, TUPLE = "$tensor", "$array", "$tuple"


@dataclass(frozen=True)
class Snapshot:
    """A `FrozenRequest` request. Holds tensors that no step changes in place, so taking one copies nothing large."""

    index: int
    latents_BCTHW: torch.Tensor
    generator: torch.Tensor
    scheduler: Mapping[str, Any]
    memory: Mapping[str, Any]

    def encode(self, identity: str) -> bytes:
        """See `FrozenRequest.encode`.

        Raises:
            TypeError: the scheduler remembers something that is neither a tensor nor plain data.
        """
        tensors = {"latents": self.latents_BCTHW.cpu().contiguous(), "generator": self.generator}
        scheduler = {name: _plain(value, f"scheduler.{name}", tensors) for name, value in self.scheduler.items()}
        memory = {name: _plain(value, f"memory.{name}", tensors) for name, value in self.memory.items()}
        said: dict[str, Any] = {"form": FORM, "identity": identity, "index": self.index}
        said |= {"scheduler": scheduler, "memory": memory}
        said["digest"] = _digest(tensors)
        data: bytes = save_tensors(tensors, {HEADER: json.dumps(said)})
        return data

    def put_back(self, state: DiffusionState) -> None:
        """Make the request that this was taken of as it was, where a step of it has failed half way."""
        for name, value in self.scheduler.items():
            setattr(state.scheduler, name, _own(value))
        state.latents_BCTHW, state.index, state.memory = self.latents_BCTHW, self.index, dict(self.memory)
        state.generator.set_state(self.generator)


def freeze(state: DiffusionState) -> Snapshot:
    """What a request is like now. Not while it is stepped."""
    remembered = {name: _own(value) for name, value in vars(state.scheduler).items() if name not in NOT_KEPT}
    return Snapshot(state.index, state.latents_BCTHW, state.generator.get_state(), remembered, dict(state.memory))


def restore(state: DiffusionState, data: bytes, identity: str) -> None:
    """Bring a request that has just begun to where an equal one was frozen.

    Args:
        state: is changed in place; its request is the one that was frozen.
        data: from `Snapshot.encode`.
        identity: what it was encoded with: says that request, model and libraries are the same.

    Raises:
        ResumeError: `data` is cut, changed, or another request's.
    """
    tensors, said = _read(data)
    if said.get("identity") != identity:
        raise ResumeError("it is of another request, model or version")
    latents, remembered = tensors["latents"], said["scheduler"]
    if latents.shape != state.latents_BCTHW.shape or not 0 <= said["index"] <= len(state.timesteps):
        raise ResumeError("it does not fit the request")
    place = state.latents_BCTHW.device
    for name, value in remembered.items():
        setattr(state.scheduler, name, _real(value, tensors, place, getattr(state.scheduler, name, None)))
    state.memory = {name: _real(value, tensors, place, None) for name, value in said["memory"].items()}
    state.latents_BCTHW = latents.to(place)
    state.generator.set_state(tensors["generator"])
    state.index = said["index"]


def _read(data: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        tensors = load_tensors(data)
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        header = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
        said = json.loads(header["__metadata__"][HEADER])
    except (SafetensorError, ValueError, KeyError) as error:
        raise ResumeError(f"it cannot be read: {error}") from error
    if said.get("form") != FORM:
        raise ResumeError(f"it has the form {said.get('form')!r}, not {FORM!r}")
    if said.get("digest") != _digest(tensors):
        raise ResumeError("its checksum is wrong")
    return tensors, said


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _own(value: Any) -> Any:
    """Lists are changed in place by schedulers, tensors in them are not."""
    return list(value) if isinstance(value, list) else value


def _plain(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """`value` as JSON; tensors in it go to `tensors`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        # A copy: two names for one memory are no safetensors file.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {TENSOR: name, "moved": value.device.type != "cpu"}
    if isinstance(value, np.ndarray | np.generic):
        tensors[name] = torch.from_numpy(np.array(value))
        return {ARRAY: name}
    if isinstance(value, list | tuple):
        items = [_plain(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be kept")


def _real(value: Any, tensors: Mapping[str, torch.Tensor], place: torch.device, fresh: Any) -> Any:
    if isinstance(value, list):
        return [_real(item, tensors, place, None) for item in value]
    if not isinstance(value, dict):
        return value
    if TUPLE in value:
        return tuple(_real(item, tensors, place, None) for item in value[TUPLE])
    if ARRAY in value:
        array = tensors[value[ARRAY]].numpy()
        return array if array.ndim else array[()]
    kept = tensors[value[TENSOR]]
    # Schedulers keep some tables on the CPU whatever the device.
    at = fresh.device if isinstance(fresh, torch.Tensor) else place if value["moved"] else torch.device("cpu")
    return kept.to(at)
