"""Who may use the gateway."""

from __future__ import annotations

import hashlib
import logging
import socket

import httpx
import openai
import pytest

from tessera.errors import AuthenticationError, SettingsError
from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.text import TextSettings
from tessera.settings.tree import Settings
from tessera_gateway.keys import Keys

HASHED = "sha256:" + hashlib.sha256(b"second-key").hexdigest()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def locked(gateway, upstream):
    return gateway(upstream("a"), api_keys=["first-key", HASHED])


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_an_accepted_key_opens(locked, key):
    client = openai.OpenAI(base_url=locked.url + "/v1", api_key=key, max_retries=0)
    assert [model.id for model in client.models.list()] == ["a"]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "first-key"},
        {"X-Api-Key": "second-key"},
        {"api-key": "first-key"},
        {**bearer("wrong"), "x-api-key": "first-key"},
        {"authorization": "Basic Zmlyc3Qta2V5", "x-api-key": "first-key"},
        {**bearer("first-key"), "x-api-key": "wrong"},
    ],
)
def test_a_key_comes_as_anthropics_and_azures_clients_send_it_too(locked, headers):
    answer = httpx.post(locked.url + "/v1/chat/completions", json={"model": "a"}, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer("first-key-and-more"),
        bearer("first-ke"),
        bearer(HASHED),
        {"authorization": "Bearer"},
        {"authorization": "first-key"},
        {"authorization": "Basic Zmlyc3Qta2V5"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"x-api-key": "Bearer first-key"},
        {"api-key": HASHED},
        {**bearer("wrong"), "x-api-key": "wrong"},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
def test_anything_else_is_refused_in_openais_envelope(locked, headers):
    answer = httpx.post(locked.url + "/v1/chat/completions", json={"model": "a"}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_every_route_of_models_needs_a_key_and_no_other_does(locked):
    from litestar.routes import HTTPRoute, WebSocketRoute

    needing = ("/v1", "/v2", "/api", "/tokenize", "/detokenize", "/rerank", "/score", "/classify")
    for route in locked.app.routes:
        if isinstance(route, WebSocketRoute):
            assert route.path == "/v1/realtime"  # asks for keys itself: test_gateway_live
            continue
        assert isinstance(route, HTTPRoute)
        for handler in route.route_handlers:
            assert bool(handler.resolve_guards()) == route.path.startswith(needing) or handler.http_methods == {
                "OPTIONS"
            }
    for path in ("/", "/health", "/ready", "/metrics", "/docs"):
        assert httpx.get(locked.url + path).status_code == 200
    for path in ("/v1/models", "/v1/models/a", "//v1/models", "/v1/models/", "/%761/models"):
        assert httpx.get(locked.url + path).status_code in {401, 404}


def test_a_wrong_key_is_refused_before_the_body_is_read(locked):
    with socket.create_connection(("127.0.0.1", locked.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n"
            b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 401")


def test_keys_are_never_logged(locked, caplog):
    caplog.set_level(logging.DEBUG)
    for key in ("first-key", "second-key", "wrong-key"):
        httpx.post(locked.url + "/v1/chat/completions", json={"model": "a"}, headers=bearer(key))
    ours = [record for record in caplog.records if not record.name.startswith(("httpcore", "httpx"))]
    assert ours
    assert not any("-key" in record.getMessage() for record in ours)


def test_an_owner_is_the_beginning_of_the_keys_hash():
    keys = Keys(["first-key", HASHED])
    assert keys.owner_of("Bearer second-key") == HASHED.removeprefix("sha256:")[:16]
    assert keys.owner_of("bearer  first-key ") == hashlib.sha256(b"first-key").hexdigest()[:16]
    with pytest.raises(AuthenticationError):
        keys.owner_of(None)


def test_without_keys_everybody_is_anonymous():
    keys = Keys([])
    assert not keys.required
    assert keys.owner_of("Bearer anything") == "anonymous"


@pytest.mark.parametrize("entry", ["", "  ", "sha256:", "sha256:abc", "sha256:" + "g" * 64])
def test_a_damaged_key_setting_is_refused_by_its_place(entry):
    with pytest.raises(SettingsError, match=r"api_keys\[1\]"):
        Keys(["good", entry])


def test_only_our_own_services_are_told_whose_request_it_is(gateway_of, upstream):
    ours, foreign = upstream("ours"), upstream("theirs", name="foreign")
    settings = Settings(
        text=TextSettings(url=ours.url),
        gateway=GatewaySettings(
            services=["text"],
            upstreams=[UpstreamSettings(name="foreign", url=foreign.url)],
            api_keys=["first-key"],
        ),
    )
    running = gateway_of(settings).knows("ours", "theirs")
    for model in ("ours", "theirs"):
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"authorization": "Bearer first-key", "x-tessera-tenant": "somebody-else"}
        httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    ((_, told, _),) = ours.requests
    assert told["x-tessera-tenant"] == hashlib.sha256(b"first-key").hexdigest()[:16]
    ((_, told, _),) = foreign.requests
    assert "x-tessera-tenant" not in told
