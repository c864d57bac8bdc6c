"""The text service's API description names the body of every success, so that clients can be generated from it."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.settings.tree import Settings
from tessera_text.app import create_app


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return create_app(Settings()).openapi_schema.to_schema()


def success_of(description: dict[str, Any], path: str) -> dict[str, Any]:
    """The content of a route's only success, by media type."""
    responses = description["paths"][path]["post"]["responses"]
    (status,) = [status for status in responses if status < "400"]
    assert status == "200"
    return responses[status]["content"]


def fields_of(description: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    name = schema["$ref"].removeprefix("#/components/schemas/")
    return set(description["components"]["schemas"][name]["properties"])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"id", "choices", "usage"}),
        ("/v1/completions", {"id", "choices", "usage"}),
        ("/v1/embeddings", {"data", "usage"}),
        ("/tokenize", {"tokens", "count", "max_model_len"}),
        ("/detokenize", {"prompt"}),
    ],
)
def test_the_body_of_a_success_is_described(description, path, fields):
    assert fields <= fields_of(description, success_of(description, path)["application/json"]["schema"])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_events_of_a_stream_are_described(description, path):
    assert {"id", "choices"} <= fields_of(description, success_of(description, path)["text/event-stream"]["schema"])
