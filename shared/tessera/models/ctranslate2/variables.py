"""The variables of a CTranslate2 `model.bin`, format 6: names, shapes and arrays, mapped and not copied.

All integers are little-endian. A string is its length (uint16), then its bytes with a zero at the end. The file is: the
format (uint32), the specification's name, its revision (uint32), the number of variables (uint32), the variables, the
number of aliases (uint32), the aliases. A variable is its name, rank (uint8), sizes (uint32 each), type (uint8), bytes
(uint32), data. An alias is its name and that of a variable. (`python/ctranslate2/specs/model_spec.py` of CTranslate2.)

Nothing in the file is run, and every length is checked against the file before it is used. Knows no model.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tessera.errors import ModelLoadError

FORMAT = 6
"""The format that CTranslate2 has written since its version 3 (2022)."""
MOST_VARIABLES = 100_000
MOST_NAME_BYTES = 4096
MOST_DIMENSIONS = 8
_TYPES: dict[int, npt.DTypeLike] = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2", 5: "<u2"}
"""NumPy's types by their numbers in the file."""
BFLOAT16 = 5
SCALE = "_scale"
"""What follows a weight's name in that of the scales by which it was multiplied before it was rounded."""
_LARGEST_INT8 = 127


class Variables(msgspec.Struct, frozen=True):
    """The variables of a file, mapped into memory."""

    specification: str
    """Name of the model's class at CTranslate2: `WhisperSpec`."""
    arrays: dict[str, npt.NDArray[np.generic]]
    """Arrays as they are stored, by name; bfloat16 as its bits in uint16. They are views of the mapped file."""
    bfloat16: frozenset[str]
    """Names of the arrays that hold bfloat16 as its bits."""

    def floats(self, name: str) -> npt.NDArray[np.float16 | np.float32]:
        """An array in float16 or float32: as it is stored, or what its integers stand for.

        Raises:
            ModelLoadError: there is no such array, or its integers have no scales.
        """
        array = self._array(name)
        if name in self.bfloat16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        if array.dtype in (np.float16, np.float32):
            return array  # type: ignore[return-value]
        scales = self.arrays.get(name + SCALE)
        if array.dtype != np.int8 or scales is None:
            raise ModelLoadError(f"{name} is {array.dtype} without scales; convert the model again, in float16 or int8")
        by_row = scales.astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
        return array.astype(np.float32) / by_row

    def number(self, name: str) -> int:
        """A number that is stored as an array of one element.

        Raises:
            ModelLoadError: there is none.
        """
        array = self._array(name)
        if array.size != 1:
            raise ModelLoadError(f"{name} is no number")
        return int(array.reshape(-1)[0])

    def _array(self, name: str) -> npt.NDArray[np.generic]:
        array = self.arrays.get(name)
        if array is None:
            raise ModelLoadError(f"{name} is missing")
        return array


def read_variables(file: Path) -> Variables:
    """Map a file and find its variables.

    Raises:
        ModelLoadError: the file cannot be read, is damaged, or has another format.
    """
    try:
        with file.open("rb") as opened:
            view = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {file}: {error}") from error
    try:
        return _Reader(view).variables()
    except _DamagedError as error:
        raise ModelLoadError(f"{file} is no model of CTranslate2, or is damaged: {error}") from error


class _DamagedError(Exception):
    """The bytes are not what the format says."""


class _Reader:
    """Reads a mapped file from its beginning."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.at = 0

    def variables(self) -> Variables:
        if (version := self._number("I")) != FORMAT:
            raise _DamagedError(f"its format is {version}, and {FORMAT} can be read; convert the model again")
        specification = self._string()
        self._number("I")  # the specification's revision, which adds variables and changes none
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        bfloat16 = set()
        for _ in range(self._count()):
            name = self._string()
            kind, array = self._array(name)
            arrays[name] = array
            if kind == BFLOAT16:
                bfloat16.add(name)
        for _ in range(self._count()):
            alias, name = self._string(), self._string()
            if name not in arrays:
                raise _DamagedError(f"{alias} stands for {name}, which is missing")
            arrays[alias] = arrays[name]
        if self.at != len(self.view):
            raise _DamagedError(f"{len(self.view) - self.at} bytes are left at its end")
        return Variables(specification, arrays, frozenset(bfloat16))

    def _array(self, name: str) -> tuple[int, npt.NDArray[np.generic]]:
        rank = self._number("B")
        if rank > MOST_DIMENSIONS:
            raise _DamagedError(f"{name} has {rank} dimensions")
        shape = [self._number("I") for _ in range(rank)]
        kind, size = self._number("B"), self._number("I")
        dtype = np.dtype(_TYPES[kind]) if kind in _TYPES else None
        if dtype is None:
            raise _DamagedError(f"{name} has the unknown type {kind}")
        count = math.prod(shape)
        if count * dtype.itemsize != size:
            raise _DamagedError(f"{name} of shape {shape} has {size} bytes")
        begin = self._skip(size)
        return kind, np.frombuffer(self.view, dtype, count, begin).reshape(shape)

    def _count(self) -> int:
        count = self._number("I")
        if count > MOST_VARIABLES:
            raise _DamagedError(f"it says that it has {count} variables")
        return count

    def _string(self) -> str:
        size = self._number("H")
        if not 1 <= size <= MOST_NAME_BYTES:
            raise _DamagedError(f"a name has {size} bytes")
        begin = self._skip(size)
        try:
            return self.view[begin : begin + size - 1].decode()
        except UnicodeDecodeError as error:
            raise _DamagedError("a name is no text") from error

    def _number(self, kind: str) -> int:
        begin = self._skip(struct.calcsize(f"<{kind}"))
        number: int = struct.unpack_from(f"<{kind}", self.view, begin)[0]
        return number

    def _skip(self, size: int) -> int:
        """The place of the next `size` bytes, which are passed over."""
        begin = self.at
        self.at += size
        if self.at > len(self.view):
            raise _DamagedError(f"it ends after {len(self.view)} bytes, within what begins at {begin}")
        return begin
