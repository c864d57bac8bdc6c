"""Calibration: the largest magnitudes of a model's inputs and keys, found by running some tokens.

Running the tokens in float32 is most of a model's start on a CPU, so the result is written to a file in the model's
directory and read again as long as the weights are the same. Knows nothing about quantization schemes.
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
"""Name of the calibration file in a model directory. It holds safetensors, but lacks their suffix: it is no weight of
the model, and the card has no checksum of it."""
_INPUT, _KEY, _SOURCE = "input/", "key/", "of"


@dataclass(frozen=True)
class Calibration:
    """Largest magnitudes that were seen.

    Attributes:
        inputs: largest magnitude of each input of a linear layer, [inputs], by the layer's name. Layers that were not
            reached are missing.
        keys: largest magnitude of each element of the keys, [heads, dim], one tensor per layer.
    """

    inputs: dict[str, torch.Tensor]
    keys: list[torch.Tensor]


def calibrate(model: nn.Module, caches: Sequence[PagedKV], run: Callable[[], object]) -> Calibration:
    """Observe the model while `run` runs it on some tokens, whose keys are in `caches` afterwards.

    Args:
        model: its linear layers are observed.
        caches: storage of keys and values, one per layer.
        run: runs the model.
    """
    inputs: dict[str, torch.Tensor] = {}

    def observe(name: str, given: torch.Tensor) -> None:
        largest_K = given.reshape(-1, given.shape[-1]).float().abs().amax(dim=0)
        inputs[name] = torch.maximum(inputs[name], largest_K) if name in inputs else largest_K

    hooks = [
        module.register_forward_pre_hook(lambda _, given, name=name: observe(name, given[0]))
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
    """The calibration stored in a model directory, or a new one, which is then stored there.

    Args:
        directory: the model directory. A file there is used as long as weights and configuration are unchanged.
        settings: describes how the calibration is made; a file made with other settings is not used.
        find: makes a new calibration.
    """
    path, source = directory / CALIBRATION_FILE, json.dumps([settings, *_files(directory)])
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get(_SOURCE) == source:
                return _unpacked({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        pass
    except (SafetensorError, OSError) as error:
        logger.warning("%s cannot be read (%s) and is made anew", path, error)
    calibration = find()
    new = path.with_name(f"{CALIBRATION_FILE}.{os.getpid()}")  # other processes may start with the same model
    try:
        save_file(dict(_packed(calibration)), new, metadata={_SOURCE: source})
        new.replace(path)
    except (SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            new.unlink()
        logger.info("the next start finds out again what inputs are like: %s cannot be written (%s)", path, error)
    return calibration


def _files(directory: Path) -> list[tuple[str, int, int]]:
    """Name, size and modification time of the files that make a model: its weights and its configuration."""
    stats = [(path.name, path.stat()) for path in sorted([*directory.glob("*.safetensors"), directory / "config.json"])]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


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
    """Largest magnitude of each element over all keys in the cache, [H, D]."""
    if cache.key_scale_PSH is None:
        return cache.key_PSHD.float().abs().amax(dim=(0, 1))
    written_P = cache.key_scale_PSH.amax(dim=(1, 2)).nonzero()[:, 0]
    if not len(written_P):
        return torch.zeros(cache.key_PSHD.shape[2:])
    return (cache.key_PSHD[written_P].float().abs() * cache.key_scale_PSH[written_P][..., None]).amax(dim=(0, 1))
