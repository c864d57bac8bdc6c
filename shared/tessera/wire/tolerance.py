"""Bodies that say less than they seem to: what changes no answer is taken out of a body that was refused.

Two things: an explicit null of a field that may be left out and whose type has no null means that it is left out; and
unknown keys of values whose type says so (`Tolerant`) are dropped. Runs only after a strict decode has failed, so that
a body without either costs nothing. Knows the types of fields, and no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import inspect

MAX_VALUES = 500_000
"""Most brackets and commas of a body that is looked through: a bound of the memory that untyped values take."""
_CURABLE = ("unknown field", "got `null`")


@runtime_checkable
class Tolerant(Protocol):
    """A type of which some values may have unknown keys."""

    @staticmethod
    def drops_unknown(fields: Mapping[str, Any]) -> bool:
        """Whether unknown keys of this value, and of all values in it, are dropped."""
        ...


def relaxed(body: bytes, kind: Any, refusal: str) -> bytes | None:
    """A body without what changes no answer.

    Args:
        body: a JSON body that is not a valid `kind`.
        kind: a type that msgspec decodes.
        refusal: why it is not valid, in msgspec's words.

    Returns:
        None if nothing could be taken out that was the reason of the refusal.
    """
    if not any(words in refusal for words in _CURABLE) or sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        return None
    try:
        value = msgspec.json.decode(body)
        return msgspec.json.encode(_relaxed(value, _described(kind), drops=False))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None


@cache
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _relaxed(value: Any, expected: inspect.Type, *, drops: bool) -> Any:
    if isinstance(value, list):
        item = next((one.item_type for one in _choices(expected) if isinstance(one, inspect.ListType)), None)
        return value if item is None else [_relaxed(one, item, drops=drops) for one in value]
    if not isinstance(value, dict):
        return value
    found = _struct_of(value, expected)
    if found is None:
        return value
    if issubclass(found.cls, Tolerant) and found.cls.drops_unknown(value):
        drops = True
    fields = {field.encode_name: field for field in found.fields}
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        field = fields.get(key)
        if field is not None:
            if inner is not None or field.required or _takes_null(field.type):
                kept[key] = _relaxed(inner, field.type, drops=drops)
        elif not drops or key == found.tag_field:
            kept[key] = inner
    return kept


def _struct_of(value: dict[str, Any], expected: inspect.Type) -> inspect.StructType | None:
    """The type among those expected that a value has, by its tag where there are several."""
    structs = [one for one in _choices(expected) if isinstance(one, inspect.StructType)]
    if len(structs) == 1:
        return structs[0]
    return next((one for one in structs if one.tag_field and value.get(one.tag_field) == one.tag), None)


def _takes_null(expected: inspect.Type) -> bool:
    return any(isinstance(one, inspect.NoneType | inspect.AnyType) for one in _choices(expected))


def _choices(expected: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(expected, inspect.Metadata):
        yield from _choices(expected.type)
    elif isinstance(expected, inspect.UnionType):
        for one in expected.types:
            yield from _choices(one)
    else:
        yield expected
