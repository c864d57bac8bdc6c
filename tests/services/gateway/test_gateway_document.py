"""The API descriptions of all apps: every operation has the schema of its success, and the errors that it can answer.

What they say is compared with what the gateway does.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

import httpx
import pytest

from tessera.settings.gateway import GatewaySettings
from tessera.settings.tree import Settings

METHODS = ("get", "put", "post", "patch", "delete", "head")
ENVELOPE = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}
NO_ENVELOPE = {"/health", "/ready", "/metrics"}
NO_KEY = {"/health", "/ready", "/metrics"}
FILES = re.compile(r"^(audio|video|image|text)/|^application/(x-subrip|x-ndjson|octet-stream|msgpack)")


@pytest.fixture(scope="module", params=["gateway", "gateway with keys", "text", "vision", "video", "speech"])
def document(request: pytest.FixtureRequest) -> Any:
    name, _, keys = request.param.partition(" ")
    settings = Settings(gateway=GatewaySettings(api_keys=["secret"] if keys else []))
    app = importlib.import_module(f"tessera_{name}.app").create_app(settings)
    return json.loads(json.dumps(app.openapi_schema.to_schema()))


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, item[method]) for path, item in document["paths"].items() for method in METHODS if method in item
    ]


def test_every_success_has_a_schema_that_says_more_than_string(document: Any) -> None:
    for path, method, operation in operations(document):
        successes = [answer for status, answer in operation["responses"].items() if status < "300"]
        assert successes, (path, method)
        for answer in successes:
            for media_type, media in answer.get("content", {}).items():
                schema = media.get("schema")
                assert schema, (path, method, media_type)
                assert schema.get("type") != "string" or FILES.match(media_type), (path, method, media_type)


def test_every_error_is_an_envelope_and_those_that_a_route_can_answer_are_named(document: Any) -> None:
    for path, method, operation in operations(document):
        if path in NO_ENVELOPE:
            continue
        answers = operation["responses"]
        expected = {"400", "421", "503", "4XX", "5XX"}
        expected |= {"401"} if operation.get("security") else set()
        expected |= {"404"} if "{" in path else set()
        expected |= {"403", "429"} if method not in {"get", "head"} else set()
        expected |= {"408", "413", "415"} if "requestBody" in operation else set()
        assert expected <= answers.keys(), (path, method)
        for status, answer in answers.items():
            if status >= "400":
                assert answer["content"] == ENVELOPE, (path, method, status)
                assert answer["description"]


def test_with_keys_every_operation_but_the_open_ones_says_401(document: Any) -> None:
    if "securitySchemes" not in document.get("components", {}):
        pytest.skip("this app asks for no key")
    for path, method, operation in operations(document):
        assert ("401" in operation["responses"]) is (path not in NO_KEY), (path, method)


def test_every_reference_of_every_document_leads_to_a_schema(document: Any) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET"}),
        ("PUT", "/health", {"GET"}),
        ("POST", "/v1/models/some/model", {"GET"}),
    ],
)
def test_a_method_that_a_route_lacks_is_answered_with_those_that_it_has(
    upstream: Any, gateway: Any, method: str, path: str, allowed: set[str]
) -> None:
    answer = httpx.request(method, gateway(upstream("m")).url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert allowed <= {word.strip() for word in answer.headers["allow"].split(",")}
