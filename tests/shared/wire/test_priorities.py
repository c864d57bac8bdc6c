"""`priority` lets a request step back and never ahead: on every route the default is the first place there is.

That is what keeps it fair that clients choose it: no key overtakes a key that asks for nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import tessera.wire

ENGINE = "tessera.wire.engine"
"""Messages between processes, which no client sends."""


def kinds() -> list[type[msgspec.Struct]]:
    """Every type of a request that has a priority."""
    names = [each.name for each in pkgutil.walk_packages(tessera.wire.__path__, "tessera.wire.") if each.name != ENGINE]
    found = [value for name in names for value in vars(importlib.import_module(name)).values()]
    return list(
        dict.fromkeys(
            kind
            for kind in found
            if isinstance(kind, type)
            and issubclass(kind, msgspec.Struct)
            and "priority" in kind.__struct_fields__
            and kind.__module__ != ENGINE
        )
    )


def test_there_are_such_requests() -> None:
    assert {"ChatCompletionRequest", "EmbeddingRequest", "RerankRequest"} <= {kind.__name__ for kind in kinds()}


@pytest.mark.parametrize("kind", kinds())
def test_no_request_can_ask_for_a_place_before_the_default(kind: type[msgspec.Struct]) -> None:
    (field,) = [each for each in msgspec.inspect.type_info(kind).fields if each.name == "priority"]  # type: ignore[attr-defined]
    options: tuple[Any, ...] = getattr(field.type, "types", (field.type,))
    (number,) = [each for each in options if isinstance(each, msgspec.inspect.IntType)]
    assert number.ge == 0
    assert field.default in {0, None}
