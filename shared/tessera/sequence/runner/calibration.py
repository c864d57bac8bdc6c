"""What a model's numbers are like where they are to be rounded: found by running some tokens, kept beside the model.

Running them in float32 is most of a model's start on a CPU, so what is found is written to a file in its directory and
read again while the weights are the same. Does not know schemes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from tessera_kernels.storage.paged_kv import PagedKV

logger = logging.getLogger(__name__)

CALIBRATION_FILE = ".calibration"
"""Safetensors, but without their suffix: it is no weight of the model, and no checksum of its card."""
_INPUT, _KEY, _OF = "input/", "key/", "of"


@dataclass(frozen=True)
class Calibration:
    """Largest magnitudes.

    Attributes:
        inputs: of each input of linear layers, [inputs], by the layers' names; without layers that were not reached.
        keys: of each number of keys, [heads, dim], by layer.
    """

    inputs: dict[str, torch.Tensor]
    keys: list[torch.Tensor]


def calibrate(model: nn.Module, caches: Sequence[PagedKV], run: Callable[[], object]) -> Calibration:
    """Look on while `run` runs the model on some tokens, whose keys are in `caches` afterwards."""
    inputs: dict[str, torch.Tensor] = {}

    def look(name: str, given: torch.Tensor) -> None:
        largest_K = given.reshape(-1, given.shape[-1]).float().abs().amax(dim=0)
        inputs[name] = torch.maximum(inputs[name], largest_K) if name in inputs else largest_K

    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: look(name, given[0]))
        for name, module in model.named_modules()
        if type(module) is nn.Linear
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return Calibration(inputs, [_largest_keys(cache) for cache in caches])


def load_or_calibrate(directory: Path, settings: str, find: Callable[[], Calibration]) -> Calibration:
    """What was found before with the same weights and the same settings, or what `find` does, which is written down."""
    path, of = directory / CALIBRATION_FILE, json.dumps([settings, *_files(directory)])
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get(_OF) == of:
                return _unpacked({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        pass
    except (SafetensorError, OSError) as error:
        logger.warning("%s cannot be read (%s) and is made anew", path, error)
    found = find()
    new = path.with_name(f"{CALIBRATION_FILE}.{os.getpid()}")  # others may start with the same model
    try:
        save_file(dict(_packed(found)), new, metadata={_OF: of})
        new.replace(path)
    except (SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            new.unlink()
        logger.info("the next start finds out again what inputs are like: %s cannot be written (%s)", path, error)
    return found


def _files(directory: Path) -> list[tuple[str, int, int]]:
    """That a model is: its weights and its configuration, by size and time."""
    found = [(path.name, path.stat()) for path in sorted([*directory.glob("*.safetensors"), directory / "config.json"])]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


def _packed(calibration: Calibration) -> Iterator[tuple[str, torch.Tensor]]:
    for name, largest_K in calibration.inputs.items():
        yield _INPUT + name, largest_K.cpu().contiguous()
    for layer, largest_HD in enumerate(calibration.keys):
        yield f"{_KEY}{layer:05d}", largest_HD.cpu().contiguous()


def _unpacked(tensors: dict[str, torch.Tensor]) -> Calibration:
    return Calibration(
        {name.removeprefix(_INPUT): one for name, one in tensors.items() if name.startswith(_INPUT)},
        [tensors[name] for name in sorted(tensors) if name.startswith(_KEY)],
    )


def _largest_keys(cache: PagedKV) -> torch.Tensor:
    """[H, D], of all keys that are there."""
    if cache.key_scale_PSH is None:
        return cache.key_PSHD.float().abs().amax(dim=(0, 1))
    written_P = cache.key_scale_PSH.amax(dim=(1, 2)).nonzero()[:, 0]
    if not len(written_P):
        return torch.zeros(cache.key_PSHD.shape[2:])
    return (cache.key_PSHD[written_P].float().abs() * cache.key_scale_PSH[written_P][..., None]).amax(dim=(0, 1))
