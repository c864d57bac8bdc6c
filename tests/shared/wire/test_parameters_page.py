"""The page of parameters lists every parameter of the language routes, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tessera.wire.chat import ChatCompletionRequest, CompletionRequest, EmbeddingRequest
from tessera.wire.hints import StreamOptions

PAGE = Path(__file__).parents[3] / "services" / "guides" / "parameters.md"
ROUTES = {"chat": ChatCompletionRequest, "text": CompletionRequest, "vector": EmbeddingRequest}


def listed() -> dict[str, str]:
    """The cell of routes of each parameter, by its name."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:chat|text|vector)[^|]*) \|", PAGE.read_text(), re.MULTILINE)
    return {name: routes for names, routes in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("route", ROUTES)
def test_every_parameter_of_a_route_is_on_the_page(route):
    missing = [name for name in ROUTES[route].__struct_encode_fields__ if route not in listed().get(name, "")]
    assert missing == [], f"{PAGE.name} says nothing of these parameters of {route}"


def test_the_page_lists_nothing_that_is_not_there():
    known = {name for kind in ROUTES.values() for name in kind.__struct_encode_fields__}
    assert set(listed()) - known == set()


def test_every_option_of_a_stream_is_on_the_page():
    for name in StreamOptions.__struct_encode_fields__:
        assert f"\n| `{name}` |" in PAGE.read_text()
