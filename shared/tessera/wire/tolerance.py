"""Bodies that say less than they seem to: what changes no answer is taken out of a body that was refused.

Two things: an explicit null of a field that may be left out and whose type has no null means that it is left out; and
unknown keys of values whose type says so (`Tolerant`) are dropped. Runs only after a strict decode has failed, so that
a body without either costs nothing. Knows the types of fields, and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
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
        if (plan := _plan_of(kind)) is not None:
            value = plan.relaxed(value, drops=False)
        return msgspec.json.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None


@dataclass
class _Field:
    """What becomes of one field: whether a null of it is kept, and the plan of its value."""

    keeps_null: bool
    plan: _Plan | None


@dataclass
class _Struct:
    """What becomes of the keys of an object."""

    tag_field: str | None
    drops_unknown: Callable[[Mapping[str, Any]], bool] | None
    fields: dict[str, _Field] = field(default_factory=dict)

    def relaxed(self, value: dict[str, Any], *, drops: bool) -> dict[str, Any]:
        drops = drops or (self.drops_unknown is not None and self.drops_unknown(value))
        kept: dict[str, Any] = {}
        for key, inner in value.items():
            known = self.fields.get(key)
            if known is None:
                if not drops or key == self.tag_field:
                    kept[key] = inner
            elif inner is None:
                if known.keeps_null:
                    kept[key] = inner
            else:
                kept[key] = inner if known.plan is None else known.plan.relaxed(inner, drops=drops)
        return kept


@dataclass
class _Plan:
    """What becomes of a value: of the items of a list, and of an object by its tag (None: the only type there is)."""

    items: _Plan | None
    structs: dict[Any, _Struct]
    tag_field: str | None

    def relaxed(self, value: Any, *, drops: bool) -> Any:
        if isinstance(value, list):
            items = self.items
            return value if items is None else [items.relaxed(one, drops=drops) for one in value]
        if isinstance(value, dict):
            tag = value.get(self.tag_field) if self.tag_field else None
            struct = self.structs.get(tag) if tag is None or isinstance(tag, str | int) else None
            return value if struct is None else struct.relaxed(value, drops=drops)
        return value


@cache
def _plan_of(kind: Any) -> _Plan | None:
    return _plan(inspect.type_info(kind), {})


def _plan(expected: inspect.Type, known: dict[type[Any], _Struct]) -> _Plan | None:
    """The plan of a type; None for a type without objects. `known` ends the recursion of types within themselves."""
    choices = list(_choices(expected))
    lists = [one for one in choices if isinstance(one, inspect.ListType)]
    structs = [one for one in choices if isinstance(one, inspect.StructType)]
    items = _plan(lists[0].item_type, known) if lists else None
    if items is None and not structs:
        return None
    alone = len(structs) == 1
    return _Plan(
        items,
        {None if alone else one.tag: _struct(one, known) for one in structs},
        None if alone or not structs else structs[0].tag_field,
    )


def _struct(described: inspect.StructType, known: dict[type[Any], _Struct]) -> _Struct:
    found = known.get(described.cls)
    if found is None:
        tolerant = described.cls.drops_unknown if issubclass(described.cls, Tolerant) else None
        found = known[described.cls] = _Struct(described.tag_field, tolerant)
        for one in described.fields:
            takes_null = any(isinstance(each, inspect.NoneType | inspect.AnyType) for each in _choices(one.type))
            found.fields[one.encode_name] = _Field(one.required or takes_null, _plan(one.type, known))
    return found


def _choices(expected: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(expected, inspect.Metadata):
        yield from _choices(expected.type)
    elif isinstance(expected, inspect.UnionType):
        for one in expected.types:
            yield from _choices(one)
    else:
        yield expected
