"""Headers of safetensors files, read without their tensors and checked against the file: what a header claims is there.

The libraries that read the tensors check much of this too; here it is refused before anything is sized by it, with the
file's name. Knows nothing about models.
"""

from __future__ import annotations

import json
import math
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import MAX_NUMBER, parse_json, read_object, section, whole_number

MAX_HEADER_BYTES = 100 * 1024 * 1024
"""Largest header of a safetensors file, as the library has it."""
_LENGTH = struct.Struct("<Q")


class TensorEntry(msgspec.Struct, frozen=True):
    """What a header says of one tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]
    """Where its bytes begin and end, behind the header."""

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)


def safetensors_header(path: Path) -> dict[str, TensorEntry]:
    """Return what the header of a safetensors file says of each tensor.

    Raises:
        ModelLoadError: the file is truncated, or its header is none, or claims what cannot be.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                raise ModelLoadError(f"{path} is not a whole safetensors file: it has {size} bytes")
            (length,) = _LENGTH.unpack(head)
            if length > min(MAX_HEADER_BYTES, size - _LENGTH.size):
                raise ModelLoadError(f"{path} is not a whole safetensors file: its header claims {length} bytes")
            data = file.read(length)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    header = parse_json(data, f"the header of {path}")
    if not isinstance(header, dict):
        raise ModelLoadError(f"{path} is not a safetensors file: its header is no JSON object")
    _refuse_repeated_names(data, path)
    entries = {name: _entry(path, name, entry) for name, entry in header.items() if name != "__metadata__"}
    _check_places(path, entries, size - _LENGTH.size - length)
    return entries


def check_index(path: Path) -> None:
    """Check an index of weights in several files: every file that it names is in its own directory.

    Raises:
        ModelLoadError: it is no index, or names a file that is not there.
    """
    weights = section(read_object(path), "weight_map", path)
    if not weights:
        raise ModelLoadError(f"{path} is no index of weights: it has no `weight_map`")
    files = set()
    for tensor, name in weights.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelLoadError(f"{path} places {tensor[:80]!r} in {name!r}, which is no file beside it")
        files.add(name)
    if missing := sorted(name for name in files if not (path.parent / name).is_file()):
        raise ModelLoadError(f"{path} names {len(missing)} files that are not there, such as {missing[0]}")


def _entry(path: Path, name: str, entry: object) -> TensorEntry:
    where = f"the tensor {name[:80]!r} of {path}"
    if not isinstance(entry, dict):
        raise ModelLoadError(f"{path} is not a safetensors file: {where} is not described by an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise ModelLoadError(f"{path} is not a safetensors file: it does not say how large {where} is")
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise ModelLoadError(f"{path} is not a safetensors file: it does not say where {where} lies")
    sizes = [whole_number(size, f"a size of {where}") for size in shape]
    begin, end = (whole_number(offset, f"an offset of {where}") for offset in offsets)
    made = TensorEntry(dtype, sizes, (begin, end))
    if begin > end or made.elements > MAX_NUMBER:
        raise ModelLoadError(f"{path} is damaged: {where} has the shape {sizes[:8]} and lies from {begin} to {end}")
    bits = _BITS.get(dtype)
    if bits is not None and made.elements * bits != (end - begin) * 8:
        raise ModelLoadError(f"{path} is damaged: {where} has {made.elements} {dtype} in {end - begin} bytes")
    return made


_BITS: dict[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 8),
}
"""Bits of an element, by the names of types that are older than this file; newer ones are left to the library."""


def _check_places(path: Path, entries: dict[str, TensorEntry], size: int) -> None:
    places = sorted((entry.data_offsets, name) for name, entry in entries.items())
    for ((_, end), one), ((begin, _), other) in pairwise(places):
        if begin < end:
            raise ModelLoadError(f"{path} is damaged: the tensors {one[:80]!r} and {other[:80]!r} overlap")
    last = max((end for (_, end), _ in places), default=0)
    if last > size:
        raise ModelLoadError(f"{path} is not a whole safetensors file: its tensors need {last} bytes, {size} are there")


def _refuse_repeated_names(data: bytes, path: Path) -> None:
    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelLoadError(f"the header of {path} has {twice[:80]!r} twice")
        return dict(pairs)

    json.loads(data, object_pairs_hook=checked)
