"""Vectors as Python has them without NumPy: read from an engine's answer, cut, and written for a client."""

from __future__ import annotations

import array
import base64
import math
import sys

from tessera.errors import InvalidRequestError


def floats(data: bytes) -> array.array[float]:
    """The values of an engine's answer, which are little-endian float32."""
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def shortened(vector: array.array[float], dimensions: int | None, *, normalize: bool = True) -> array.array[float]:
    """The first `dimensions` values of a vector, made a vector of length one again.

    Raises:
        InvalidRequestError: the vector is shorter.
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise InvalidRequestError(f"`dimensions` is {dimensions}; this model has {len(vector)}", param="dimensions")
    first = vector[:dimensions]
    if not normalize:
        return first
    length = math.sqrt(sum(value * value for value in first)) or 1.0
    return array.array("f", (value / length for value in first))


def written(vector: array.array[float], encoding: str) -> list[float] | str:
    """A vector as an answer has it: a list for the encoding `float`, else base64 of little-endian float32."""
    if encoding == "float":
        return vector.tolist()
    if sys.byteorder == "big":
        vector = array.array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
