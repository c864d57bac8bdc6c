"""The gateway's API description: every route says what a success is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tessera.settings.tree import Settings
from tessera_gateway.app import create_app

METHODS = {"get", "put", "post", "delete", "head"}


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(json.dumps(create_app(Settings()).openapi_schema.to_schema()))


def routes_of(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS and (path.startswith("/v1/") or path in {"/tokenize", "/detokenize", "/health", "/ready"})
    ]


def test_every_route_describes_its_success(document: Any) -> None:
    routes = routes_of(document)
    assert len(routes) > 25
    for path, method, operation in routes:
        content = operation["responses"]["200"]["content"]
        assert content, (path, method)
        for media_type, media in content.items():
            schema = media["schema"]
            if media_type in {"application/json", "text/event-stream"}:
                assert "$ref" in schema or all("$ref" in each for each in schema["anyOf"]), (path, method, schema)
            else:
                assert schema["type"] == "string", (path, method, media_type)


def test_every_reference_leads_to_a_schema(document: Any) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    ("path", "method", "name"),
    [
        ("/v1/chat/completions", "post", "ChatCompletion"),
        ("/v1/embeddings", "post", "EmbeddingList"),
        ("/tokenize", "post", "Tokenized"),
        ("/v1/videos", "post", "Video"),
        ("/v1/videos", "get", "VideoList"),
        ("/v1/images/generations", "post", "ImagesResponse"),
        ("/v1/audio/transcriptions/{job_id}", "get", "TranscriptionJob"),
        ("/v1/models", "get", "ModelList"),
        ("/ready", "get", "Health"),
    ],
)
def test_a_success_is_the_wire_type(document: Any, path: str, method: str, name: str) -> None:
    content = document["paths"][path][method]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}


def test_a_stream_and_an_accepted_job_are_described_beside_the_answer(document: Any) -> None:
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert chat["text/event-stream"]["schema"] == {"$ref": "#/components/schemas/ChatCompletionChunk"}
    accepted = document["paths"]["/v1/audio/transcriptions"]["post"]["responses"]["202"]["content"]
    assert accepted["application/json"]["schema"] == {"$ref": "#/components/schemas/TranscriptionJob"}


@pytest.mark.parametrize(
    ("path", "file", "needed"),
    [
        ("/v1/audio/transcriptions", "file", True),
        ("/v1/audio/translations", "file", True),
        ("/v1/videos", "input_reference", False),
    ],
)
def test_a_form_may_hold_its_file(document: Any, path: str, file: str, needed: bool) -> None:
    """One object: `allOf` with a type that allows no other fields would forbid the file."""
    form = document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"][file] == {"type": "string", "format": "binary"}
    assert (file in form["required"]) is needed
    assert {"allOf", "$ref"}.isdisjoint(form)
    assert form["additionalProperties"] is False
