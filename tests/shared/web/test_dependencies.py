"""Handlers get their collaborators by name and type; the API description shows what they answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from litestar import Litestar, Response, get, post
from litestar.exceptions import LitestarException
from litestar.response import Stream
from litestar.testing import TestClient
from prometheus_client import CollectorRegistry

from tessera.web.app import build_app, json_response
from tessera.web.dependencies import Injected, Opened, provide
from tessera.web.docs import documented


class Greeter:
    """A collaborator."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.closed = False


class Greeting(msgspec.Struct, frozen=True):
    """An answer."""

    text: str


class Letter(msgspec.Struct, frozen=True):
    """A part of an answer that is streamed."""

    letter: str


class Wish(msgspec.Struct, frozen=True):
    """A request."""

    name: str


@get("/v1/greeting")
async def greet(greeter: Injected[Greeter], name: str = "you") -> Response[Greeting]:
    """Greet."""
    return json_response(Greeting(f"{greeter.word} {name}"), headers={"x-greeter": "yes"})


@post("/v1/spelling", status_code=200, operation_class=documented(Wish, returns=Greeting, events=Letter))
async def spell() -> Response[Greeting] | Stream:
    """Spell."""
    return json_response(Greeting(""))


@get("/v1/song", operation_class=documented(files=["audio/mpeg", "text/plain"]))
async def sing() -> Response[bytes]:
    """Sing."""
    return Response(b"la")


async def ready() -> dict[str, str]:
    return {}


def app_of(handlers: list[Any], **options: Any) -> Litestar:
    return build_app("test", handlers, ready=ready, registry=CollectorRegistry(), description="", **options)


def document_of(app: Litestar) -> Any:
    return json.loads(json.dumps(app.openapi_schema.to_schema()))


def test_a_handler_gets_the_object_of_its_name() -> None:
    with TestClient(app_of([greet], dependencies={"greeter": provide(Greeter("hello"))})) as client:
        answer = client.get("/v1/greeting", params={"name": "there"})
    assert answer.content == b'{"text":"hello there"}'
    assert (answer.headers["content-type"], answer.headers["x-greeter"]) == ("application/json", "yes")


def test_an_opened_collaborator_lives_as_long_as_the_app_serves() -> None:
    greeter = Greeter("hello")

    @asynccontextmanager
    async def opening() -> AsyncIterator[Greeter]:
        yield greeter
        greeter.closed = True

    opened = Opened(opening)
    app = app_of([greet], dependencies={"greeter": opened.provide}, lifespan=[opened.lifespan])
    with TestClient(app) as client:
        assert client.get("/v1/greeting").json() == {"text": "hello you"}
        assert opened.value is greeter
        assert not greeter.closed
    assert greeter.closed
    with pytest.raises(AssertionError, match="outside"):
        _ = opened.value


def test_a_name_that_nobody_provides_is_an_error_when_the_app_is_built() -> None:
    with pytest.raises(LitestarException, match="greeter"):
        app_of([greet])


def test_the_document_shows_a_success_of_every_form() -> None:
    document = document_of(app_of([greet, spell, sing], dependencies={"greeter": provide(Greeter("hello"))}))

    def content(path: str, method: str) -> Any:
        described = document["paths"][path][method]["responses"]["200"]["content"]
        return {kind: media["schema"] for kind, media in described.items()}

    greeting = {"$ref": "#/components/schemas/Greeting"}
    assert content("/v1/greeting", "get") == {"application/json": greeting}
    assert content("/v1/spelling", "post") == {
        "application/json": greeting,
        "text/event-stream": {"$ref": "#/components/schemas/Letter"},
    }
    assert content("/v1/song", "get") == {
        "audio/mpeg": {"type": "string", "format": "binary"},
        "text/plain": {"type": "string"},
    }
    assert {"Greeting", "Letter", "Wish", "ErrorEnvelope"} <= document["components"]["schemas"].keys()
    assert [each["name"] for each in document["paths"]["/v1/greeting"]["get"]["parameters"]] == ["name"]
    assert {"200", "4XX", "5XX"} <= set(document["paths"]["/v1/greeting"]["get"]["responses"])
