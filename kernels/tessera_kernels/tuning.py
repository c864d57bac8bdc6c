"""Launch configurations that were timed on a device, read from `tuned/<device>.json`.

A file belongs to one device and holds configurations by Triton's version, op, dtype and bucket of shapes. The op's own
heuristic decides wherever the file has no entry, so an unknown device is no error. `tessera_kernels.tune` writes the
files; nothing is timed while a request runs. Knows nothing of what a bucket or a configuration means to an op, and
imports no Triton.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tuned"

Table = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]]]
"""Triton's version -> op -> dtype -> bucket -> configuration."""


class TuningError(ValueError):
    """A file of tuned configurations is malformed; the message names the file and the place in it."""


def lookup(op: str, device_name: str, dtype: str, bucket: str) -> dict[str, int] | None:
    """The fastest configuration, or None if none was timed.

    Args:
        op: name of the op's folder.
        device_name: name of the device, as `torch.cuda.get_device_name()` returns it.
        dtype: name of the dtype that the op's launcher uses, such as `bfloat16`.
        bucket: name of a class of shapes that the op's launcher uses.

    Raises:
        TuningError: there is a file for the device, and it is malformed.
    """
    table = load(path_of(device_name))
    found = table.get(triton_version(), {}).get(op, {}).get(dtype, {}).get(bucket)
    return dict(found) if found is not None else None


def device_here() -> str:
    """The name of the current CUDA device, or `cpu` if there is none (Triton's interpreter)."""
    import torch  # noqa: PLC0415 - reading a file needs no torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def path_of(device_name: str) -> Path:
    """The file that holds the configurations of a device."""
    return FOLDER / f"{slug(device_name)}.json"


@lru_cache(maxsize=8)
def slug(device_name: str) -> str:
    """The name of a device as a file name: `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")


@lru_cache(maxsize=1)
def triton_version() -> str:
    """Major and minor version of Triton, as tables name it; empty if Triton is not installed."""
    try:
        return ".".join(version("triton").split(".")[:2])
    except PackageNotFoundError:
        return ""


@lru_cache(maxsize=8)
def load(path: Path) -> Table:
    """All configurations of a file; empty if there is no file.

    Raises:
        TuningError: the file is not JSON, or its objects are not nested as `Table` is.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise TuningError(f"{path} is not JSON: {error}. Delete it, or write it again: tessera_kernels.tune") from error
    if not isinstance(found, dict) or set(found) != {"device", "configurations"}:
        raise TuningError(f"{path} must have the fields 'device' and 'configurations' and no other")
    _check(path, found["configurations"], ["Triton's version", "op", "dtype", "bucket"], [])
    table: Table = found["configurations"]
    return table


def _check(path: Path, found: Any, levels: list[str], place: list[str]) -> None:
    where = " / ".join(["configurations", *place])
    if not isinstance(found, dict):
        wanted = f"an object by {levels[0]}" if levels else "a configuration"
        raise TuningError(f"{path}: {where} must be {wanted}, not {json.dumps(found)}")
    for name, inner in found.items():
        if levels:
            _check(path, inner, levels[1:], [*place, name])
        elif not isinstance(inner, int) or isinstance(inner, bool):
            raise TuningError(f"{path}: {where} / {name} must be a whole number, not {json.dumps(inner)}")


def write(device_name: str, op: str, configurations: Mapping[tuple[str, str], Mapping[str, int]]) -> Path:
    """Write configurations of an op into the device's file; other entries of the file stay.

    Args:
        device_name: name of the device, as `torch.cuda.get_device_name()` returns it.
        op: name of the op's folder.
        configurations: the fastest configuration by dtype and bucket.

    Returns:
        The path of the file.

    Raises:
        TuningError: the existing file is malformed.
    """
    path = path_of(device_name)
    table = json.loads(json.dumps(load(path)))
    of_op = table.setdefault(triton_version(), {}).setdefault(op, {})
    for (dtype, bucket), config in configurations.items():
        of_op.setdefault(dtype, {})[bucket] = dict(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"device": device_name, "configurations": table}
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    unfinished.replace(path)
    load.cache_clear()
    return path
