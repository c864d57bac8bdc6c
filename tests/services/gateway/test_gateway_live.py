"""Live sessions through the gateway: keys and limits before there is one, every frame as it was, ends on both sides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import until_async
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tessera.engine.waits import WaitMeter
from tessera.settings.gateway import GatewaySettings
from tessera.settings.speech import SpeechSettings
from tessera.settings.tree import Settings

KEY = "a-key-for-the-test"


@pytest.fixture
def live(upstream: Any, model: Any, gateway_of: Any) -> Callable[..., Any]:
    """`live(**gateway settings)`: a gateway before a fake speech service. Returns both."""

    def start(**values: Any) -> Any:
        fake = upstream(model("hears", "transcription"), model("speaks", "speech"), name="speech")
        settings = Settings(
            gateway=GatewaySettings(**{"services": ["speech"], **values}), speech=SpeechSettings(url=fake.url)
        )
        return gateway_of(settings).knows("hears", "speaks"), fake

    return start


def address(gateway: Any, query: str = "") -> str:
    return f"{gateway.url.replace('http', 'ws')}/v1/realtime{query}"


async def refused(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as caught:
        await connect(url, **options)
    return caught.value.response.status_code, json.loads(caught.value.response.body)["error"]


def test_frames_pass_as_they_are(live: Any) -> None:
    gateway, fake = live()

    async def talk() -> dict[str, Any]:
        async with connect(address(gateway, "?intent=transcription&a=b"), max_size=None) as line:
            hello = json.loads(await line.recv())
            large = "x" * (15 * 1024 * 1024)
            for frame in ("{not json", "h\u00e9llo \U0001f642", b"\x00\xff", large):
                await line.send(frame)
                assert await line.recv() == frame
        return hello

    hello = asyncio.run(talk())
    assert hello["query"] == {"intent": "transcription", "a": "b"}
    assert hello["headers"]["x-tessera-tenant"] == "anonymous"
    assert "authorization" not in hello["headers"]
    assert fake.left.wait(20)


def test_only_keys_open_a_session(live: Any) -> None:
    gateway, _ = live(api_keys=[KEY])

    async def talk() -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
            status, error = await refused(address(gateway), additional_headers=headers)
            assert (status, error["code"]) == (401, "invalid_api_key")
        for header in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
            async with connect(address(gateway), additional_headers=header) as line:
                assert json.loads(await line.recv())["type"] == "session.created"
        protocols = ["realtime", f"openai-insecure-api-key.{KEY}"]
        async with connect(address(gateway), subprotocols=protocols, origin="https://elsewhere.example") as line:
            assert line.subprotocol == "realtime"
            hello = json.loads(await line.recv())
            assert KEY not in json.dumps(hello), "the upstream never sees a key"

    asyncio.run(talk())


def test_without_keys_no_foreign_page_may_connect(live: Any) -> None:
    gateway, _ = live()

    async def talk() -> None:
        status, error = await refused(address(gateway), origin="https://evil.example")
        assert (status, error["code"]) == (403, "permission_denied")
        async with connect(address(gateway), origin=gateway.url) as line:
            await line.recv()

    asyncio.run(talk())


def test_a_key_has_so_many_sessions(live: Any, wait: Any) -> None:
    gateway, _ = live(max_live_sessions=2)

    async def talk() -> None:
        async with connect(address(gateway)), connect(address(gateway)):
            status, error = await refused(address(gateway))
            assert (status, error["code"]) == (429, "rate_limit_exceeded")

    asyncio.run(talk())
    wait(lambda: not gateway.collaborator("live")._open, "the seats to be free")
    asyncio.run(asyncio.wait_for(once(address(gateway)), 20))


async def once(url: str) -> None:
    async with connect(url) as line:
        await line.recv()


def test_who_has_too_many_sessions_is_told_how_fast_they_ended(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, _ = live(max_live_sessions=2)
    proxy = gateway.collaborator("live")
    now = 1000.0
    monkeypatch.setitem(proxy._meters, "anonymous", WaitMeter(lambda: now))

    async def talk() -> None:
        nonlocal now
        async with connect(address(gateway)):
            for _ in range(3):
                async with connect(address(gateway)):
                    now += 30.0
                await until_async(lambda: proxy._open["anonymous"] == 1, what="the session to end")
            async with connect(address(gateway)):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(address(gateway))
        assert refused.value.response.headers["retry-after"] == "30"
        assert "about 30 s" in json.loads(refused.value.response.body)["error"]["message"]

    asyncio.run(talk())


def test_a_language_model_that_nobody_has_is_refused_at_once(live: Any) -> None:
    gateway, _ = live()
    status, error = asyncio.run(refused(address(gateway, "?model=gpt-9")))
    assert (status, error["param"]) == (404, "model")
    status, error = asyncio.run(refused(address(gateway, "?intent=transcription&model=gpt-9")))
    assert (status, error["param"]) == (404, "model")


def test_an_upstream_that_is_cut_is_told(live: Any) -> None:
    gateway, _ = live()

    async def talk() -> None:
        async with connect(address(gateway)) as line:
            await line.recv()
            await line.send("cut")
            error = json.loads(await line.recv())
            assert (error["type"], error["error"]["code"]) == ("error", "upstream_error")
            with pytest.raises(ConnectionClosed) as closed:
                await line.recv()
            assert closed.value.rcvd.code == 1011

    asyncio.run(talk())


def test_an_upstream_that_ends_a_session_says_why(live: Any) -> None:
    gateway, _ = live()

    async def talk() -> None:
        async with connect(address(gateway)) as line:
            await line.recv()
            await line.send("bye")
            with pytest.raises(ConnectionClosed) as closed:
                await line.recv()
            assert closed.value.rcvd.code == 1013

    asyncio.run(talk())


def test_a_client_that_leaves_ends_its_session_upstream(live: Any, wait: Any) -> None:
    gateway, fake = live()
    asyncio.run(once(address(gateway)))
    assert fake.left.wait(20)
    wait(
        lambda: all(upstream.in_flight == 0 for upstream in gateway.collaborator("upstreams").all), "nothing in flight"
    )


def test_a_speech_service_that_is_away_is_told(live: Any) -> None:
    gateway, fake = live()
    fake.stop()
    status, error = asyncio.run(refused(address(gateway)))
    assert (status, error["code"]) == (503, "unavailable")
