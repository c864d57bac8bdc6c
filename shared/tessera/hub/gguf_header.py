"""Checks the header of a GGUF file against the file, before a library that trusts its counts and lengths reads it.

Knows the layout of versions 2 and 3: counts, keys with values, descriptions of tensors. Does not know what keys mean.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import MAX_NUMBER

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Longest text of a key: chat templates have kilobytes."""
MAX_DIMENSIONS = 8
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type's number; texts (8) and arrays (9) have lengths of their own."""
_TEXT, _ARRAY = 8, 9
_LEAST_ENTRY = {_TEXT: 8, **_SIZES}
"""Fewest bytes of an array's entry."""


def check_gguf(path: Path) -> None:
    """Check that what a file's header claims fits into the file.

    Raises:
        ModelLoadError: it is no GGUF file, is cut, or claims what cannot be; names the file and the place.
    """
    try:
        with path.open("rb") as file:
            _GGUFHeader(path, file, path.stat().st_size).check()
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error


class _GGUFHeader:
    """A header that is read from its beginning to its end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size

    def check(self) -> None:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise ModelLoadError(f"{self._path} is not a GGUF file: it does not begin with `GGUF`")
        version = self._number("<I", "its version")
        if version not in VERSIONS:
            raise self._wrong(f"version {version} is not one of {', '.join(map(str, VERSIONS))}")
        tensors = self._count("its number of tensors", least_bytes=24)
        keys = self._count("its number of keys", least_bytes=13)
        for index in range(keys):
            self._skip(self._number("<Q", f"key {index}"), f"key {index}")
            self._value(self._number("<I", f"the type of key {index}"), f"key {index}")
        for index in range(tensors):
            self._tensor(f"tensor {index}")

    def _value(self, kind: int, what: str) -> None:
        if kind == _TEXT:
            self._skip(self._number("<Q", what), what)
        elif kind != _ARRAY:
            if kind not in _SIZES:
                raise self._wrong(f"{what} has the unknown type {kind}")
            self._skip(_SIZES[kind], what)
        else:
            entry = self._number("<I", what)
            if entry not in _LEAST_ENTRY:
                raise self._wrong(f"{what} is an array of the type {entry}, which is unknown or an array itself")
            count = self._count(what, least_bytes=_LEAST_ENTRY[entry])
            if entry != _TEXT:
                self._jump(count * _SIZES[entry], what)
            else:
                for _ in range(count):
                    self._skip(self._number("<Q", what), what)

    def _tensor(self, what: str) -> None:
        self._skip(self._number("<Q", what), what)
        dimensions = self._number("<I", what)
        if dimensions > MAX_DIMENSIONS:
            raise self._wrong(f"{what} has {dimensions} dimensions; at most {MAX_DIMENSIONS} can be")
        elements = 1
        for _ in range(dimensions):
            elements *= self._number("<Q", what)
        self._number("<I", what)
        offset = self._number("<Q", what)
        if elements > MAX_NUMBER or offset > self._size:
            raise self._wrong(f"{what} has {elements} elements at byte {offset} of {self._size}")

    def _count(self, what: str, *, least_bytes: int) -> int:
        count = self._number("<Q", what)
        if count * least_bytes > self._size - self._file.tell():
            raise self._wrong(f"{what} is {count}, for which the file is too short")
        return count

    def _skip(self, length: int, what: str) -> None:
        if length > MAX_TEXT_BYTES:
            raise self._wrong(f"{what} claims a text of {length} bytes")
        self._jump(length, what)

    def _jump(self, length: int, what: str) -> None:
        if self._file.tell() + length > self._size:
            raise self._wrong(f"the file ends within {what}")
        self._file.seek(length, 1)

    def _number(self, form: str, what: str) -> int:
        data = self._file.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise self._wrong(f"the file ends within {what}")
        (value,) = struct.unpack(form, data)
        return int(value)

    def _wrong(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"the header of {self._path} is damaged: {reason}")
