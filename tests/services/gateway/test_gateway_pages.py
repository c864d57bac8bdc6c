"""Web pages of other sites cannot use a gateway without keys: not by a form, not by a name that turns to this machine.

Every route of the API description is asked, so a new one is covered when it is described.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tessera.errors import SettingsError
from tessera.settings.http import HttpSettings
from tessera.settings.load import load
from tessera.settings.tree import Settings
from tessera_gateway.app import create_app

EVIL = "https://evil.example"
READS = {"get", "head"}


@pytest.fixture(scope="module")
def app() -> Any:
    return create_app(Settings())


@pytest.fixture(scope="module")
def routes(app: Any) -> list[tuple[str, str]]:
    document = json.loads(json.dumps(app.openapi_schema.to_schema()))
    return [
        (path.format_map({"name": "x"}) if "{" not in path else path.split("{")[0] + "x", method)
        for path, methods in document["paths"].items()
        for method in methods
        if method in {"get", "head", "post", "put", "patch", "delete"}
    ]


def asked(app: Any, method: str, path: str, **headers: str) -> httpx.Response:
    """The answer to a request, without a server; nothing behind the check works there."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


def message_of(answer: httpx.Response) -> str:
    """What an error says, in whichever envelope the route has."""
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def test_no_route_that_changes_something_obeys_a_foreign_page(app: Any, routes: list[tuple[str, str]]) -> None:
    changing = [(path, method) for path, method in routes if method not in READS]
    assert len(changing) > 10
    for path, method in changing:
        for origin in (EVIL, "null", "http://127.0.0.1:9999", ""):
            answer = asked(app, method, path, origin=origin)
            assert answer.status_code == 403, (path, method, origin)
            assert "http.allow_origins" in message_of(answer)


def test_no_route_answers_under_a_name_that_strangers_can_register(app: Any, routes: list[tuple[str, str]]) -> None:
    for path, method in routes:
        if path in {"/health", "/ready"}:
            continue
        answer = asked(app, method, path, host="rebound.evil.example:8000")
        assert answer.status_code == 421, (path, method)
        assert method == "head" or "http.allow_hosts" in message_of(answer)
        assert answer.headers["x-request-id"]


def test_a_page_that_took_the_name_is_of_the_same_origin_and_still_refused(app: Any) -> None:
    answer = asked(app, "post", "/v1/videos", host="rebound.evil.example", origin="http://rebound.evil.example")
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "10.1.2.3", "gateway:8000", "host.docker.internal",
     "gateway.tessera.svc.cluster.local", "box.lan", "localhost."],
)  # fmt: skip
def test_names_that_nobody_can_register_and_addresses_pass(app: Any, host: str) -> None:
    assert asked(app, "get", "/", host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "a@b.example", "["]
)
def test_other_names_do_not(app: Any, host: str) -> None:
    assert asked(app, "get", "/", host=host).status_code == 421


def test_probes_pass_under_any_name(app: Any) -> None:
    assert asked(app, "get", "/health", host="probe.example").status_code == 200


def test_programs_and_pages_of_the_gateway_itself_reach_the_upstream(upstream: Any, gateway: Any) -> None:
    running = gateway(upstream("m"))
    body = {"model": "m", "messages": []}
    for headers in ({}, {"origin": running.url}):
        assert httpx.post(running.url + "/v1/chat/completions", json=body, headers=headers).status_code == 200
    localhost = {"host": "localhost:80", "origin": "http://localhost"}
    assert httpx.post(running.url + "/v1/chat/completions", json=body, headers=localhost).status_code == 200
    assert httpx.get(running.url + "/docs", headers={"origin": EVIL}).status_code == 200, "reading tells no page"


def test_with_keys_a_foreign_page_lacks_one_and_any_name_passes(upstream: Any, gateway: Any) -> None:
    running = gateway(upstream("m"), api_keys=["secret"])
    body = {"model": "m", "messages": []}
    headers = {"origin": EVIL, "host": "api.example.com"}
    assert httpx.post(running.url + "/v1/chat/completions", json=body, headers=headers).status_code == 401
    headers["authorization"] = "Bearer secret"
    assert httpx.post(running.url + "/v1/chat/completions", json=body, headers=headers).status_code == 200


def test_what_the_operator_allows_passes_and_browsers_are_told(app: Any) -> None:
    http = HttpSettings(allow_hosts=["api.example.com", "*.example.org"], allow_origins=["https://app.example.com"])
    allowing = create_app(Settings(http=http))
    for host in ("api.example.com", "a.b.example.org:8000"):
        assert asked(allowing, "get", "/", host=host).status_code == 200
    assert asked(allowing, "get", "/", host="example.org").status_code == 421
    page = {"origin": "https://app.example.com"}
    preflight = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    answer = asked(allowing, "options", "/v1/chat/completions", **preflight)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == page["origin"]
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert "POST" in answer.headers["access-control-allow-methods"]
    answer = asked(allowing, "post", "/v1/chat/completions", **page)
    assert answer.status_code not in {403, 421}, "it came to the route"
    assert answer.headers["access-control-allow-origin"] == page["origin"]
    assert asked(allowing, "post", "/v1/chat/completions", origin=EVIL).status_code == 403
    assert "access-control-allow-origin" not in asked(app, "options", "/v1/videos", **preflight).headers


def test_a_star_switches_the_checks_off() -> None:
    app = create_app(Settings(http=HttpSettings(allow_hosts=["*"], allow_origins=["*"])))
    answer = asked(app, "post", "/v1/chat/completions", host="evil.example", origin=EVIL)
    assert answer.status_code not in {403, 421}


@pytest.mark.parametrize(
    ("key", "value"),
    [("allow_origins", "app.example.com"), ("allow_origins", "https://app.example.com/"), ("allow_hosts", "a.com:80")],
)
def test_an_origin_or_host_that_no_browser_sends_is_refused_at_the_start(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"http.{key}"):
        load(environment={}, overrides={"http": {key: [value]}})
