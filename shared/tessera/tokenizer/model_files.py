"""Reads the JSON of model directories, which come from strangers: bounded in size and depth, and checked by key.

Whatever a file holds, the outcome is a value of the type that was asked for or a `ModelLoadError` that names the file,
the key and what is wrong. Knows nothing about what the values mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tessera.errors import ModelLoadError

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Largest file of JSON that is read: some vocabularies have tens of megabytes, no configuration has one."""
MAX_DEPTH = 100
"""Most levels of objects and arrays inside each other. Real files have ten; libraries that read them recurse."""
MAX_NUMBER = 1 << 53
"""Largest whole number that a key may have: beyond it nothing in a model counts anything."""

T = TypeVar("T")


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Raises:
        ModelLoadError: it is missing, too large or too deep, no JSON, or no object.
    """
    return _of_type(parse_json(_bytes(path), path), dict, "object", path)


def read_object_if_there(path: Path) -> dict[str, Any]:
    """Read a file that may be missing and holds a JSON object; empty if it is. Raises what `read_object` raises."""
    return read_object(path) if path.is_file() else {}


def read_list(path: Path) -> list[Any]:
    """Read a file that holds a JSON array. Raises what `read_object` raises."""
    return _of_type(parse_json(_bytes(path), path), list, "array", path)


def read_as(path: Path, kind: type[T]) -> T:
    """Read a file as a `msgspec` type; keys that the type does not have are passed over.

    Raises:
        ModelLoadError: it is missing, too large or too deep, or holds something else.
    """
    data = _bytes(path)
    parse_json(data, path)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelLoadError(f"{path} is damaged: {error}") from error


def parse_json(data: bytes, source: object) -> Any:
    """Parse JSON of a model's file.

    Args:
        data: UTF-8.
        source: where it is from; named in errors.

    Raises:
        ModelLoadError: it is no JSON, or too deep.
    """
    try:
        value = json.loads(data.decode("utf-8"))  # from bytes it would take other encodings, which libraries do not
    except RecursionError:
        raise ModelLoadError(f"{source} has more than {MAX_DEPTH} levels of objects and arrays") from None
    except ValueError as error:
        raise ModelLoadError(f"{source} is not valid JSON: {str(error)[:200]}") from error
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ModelLoadError(f"{source} has more than {MAX_DEPTH} levels of objects and arrays")


def section(values: Mapping[str, Any], key: str, source: object) -> dict[str, Any]:
    """The object at a key; empty if there is none or it is null.

    Raises:
        ModelLoadError: something else is there.
    """
    found = values.get(key)
    return {} if found is None else _of_type(found, dict, "object", f"`{key}` of {source}")


def text(values: Mapping[str, Any], key: str, source: object) -> str | None:
    """The text at a key; None if there is none or it is null.

    Raises:
        ModelLoadError: something else is there.
    """
    found = values.get(key)
    return None if found is None else _of_type(found, str, "text", f"`{key}` of {source}")


def whole(values: Mapping[str, Any], key: str, source: object, *, least: int = 0) -> int | None:
    """The whole number at a key; None if there is none or it is null.

    Raises:
        ModelLoadError: something else is there, or the number is below `least` or above `MAX_NUMBER`.
    """
    found = values.get(key)
    return None if found is None else whole_number(found, f"`{key}` of {source}", least=least)


def whole_number(value: object, name: str, *, least: int = 0) -> int:
    """A value that must be a whole number.

    Raises:
        ModelLoadError: it is something else, or below `least` or above `MAX_NUMBER`.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_NUMBER:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
        raise ModelLoadError(f"{name} must be a whole number from {least} to {MAX_NUMBER}, not {_shown(value)}")
    return value


def number(values: Mapping[str, Any], key: str, source: object, *, least: float = 0.0) -> float | None:
    """The number at a key; None if there is none or it is null.

    Raises:
        ModelLoadError: something else is there, or the number is not finite or below `least`.
    """
    found = values.get(key)
    if found is None:
        return None
    good = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= MAX_NUMBER
    if not good or not math.isfinite(found) or found < least:
        raise ModelLoadError(f"`{key}` of {source} must be a number from {least:g}, not {_shown(found)}")
    return float(found)


def _bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelLoadError(f"{path} has {size} bytes; at most {MAX_JSON_BYTES} of JSON are read")
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    return [inner for inner in value if isinstance(inner, dict | list)] if isinstance(value, list) else []


def _of_type(value: object, kind: type[T], word: str, name: object) -> T:
    if not isinstance(value, kind):
        raise ModelLoadError(f"{name} must be a JSON {word}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    shown = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > MAX_NUMBER else None
    return shown or repr(value)[:60]
