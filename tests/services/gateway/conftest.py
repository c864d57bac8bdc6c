"""A gateway and upstreams to put behind it, all real servers on free ports, in threads of the test's process.

An upstream does what the request's `behave` asks for; the gateway passes fields that it does not know.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from aiohttp import web

from tessera.settings.gateway import GatewaySettings, UpstreamSettings
from tessera.settings.tree import Settings
from tessera.web.serve import server
from tessera.wire.models import Card, Model, ModelList
from tessera_gateway.app import create_app

DEADLINE_S = 20.0
EVENTS = [b'data: {"n": %d, "text": "h\xc3\xa9llo"}\n\n' % n for n in range(5)] + [b"data: [DONE]\n\n"]


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {DEADLINE_S} s for {what}")


def described(name: str, *tasks: str) -> Model:
    """A model with a card, as our services list it."""
    card = Card(id=name, family="Fake", tasks=list(tasks), source="test", parameters=1, licence="none")
    return Model(id=name, created=1, card=card, device="cpu")


class FakeUpstream:
    """A server that answers as told and remembers what it got."""

    def __init__(self, *models: Model, name: str = "fake") -> None:
        self.models = list(models)
        self.name = name
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.polls: list[dict[str, str]] = []
        self.began = threading.Event()
        self.left = threading.Event()
        self.go_on = threading.Event()
        self.ready = "ok"
        self.events = EVENTS
        self.listing: bytes | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> FakeUpstream:
        if not self._thread.is_alive():
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(DEADLINE_S)
        return self

    def stop(self) -> None:
        """Close the port and cut all connections. `start` opens the same port again."""
        self.go_on.set()
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(DEADLINE_S)
            self._runner = None

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ready", self._readiness)
        app.router.add_get("/v1/realtime", self._live)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _models(self, request: web.Request) -> web.Response:
        self.polls.append(dict(request.headers))
        listing = self.listing or msgspec.json.encode(ModelList(data=self.models))
        return web.Response(body=listing, content_type="application/json")

    async def _readiness(self, _: web.Request) -> web.Response:
        return web.json_response({"status": self.ready, "service": "fake", "version": "0", "parts": {}})

    async def _live(self, request: web.Request) -> web.WebSocketResponse:
        """Says what it was asked for, then everything again; `cut` aborts, `bye` closes with a code of its own."""
        line = web.WebSocketResponse(max_msg_size=0)
        await line.prepare(request)
        self.began.set()
        headers = {name.lower(): value for name, value in request.headers.items()}
        await line.send_json({"type": "session.created", "query": dict(request.query), "headers": headers})
        try:
            async for message in line:
                if message.data == "cut":
                    request.transport.abort()
                elif message.data == "bye":
                    await line.close(code=1013)
                else:
                    await (line.send_str if message.type == web.WSMsgType.TEXT else line.send_bytes)(message.data)
        finally:
            self.left.set()
        return line

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        told: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            told = json.loads(body)
        self.began.set()
        try:
            return await getattr(self, f"_{told.get('behave', 'plainly')}")(request, told)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise

    async def _plainly(self, _: web.Request, told: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"from": self.name},
            status=told.get("status", 200),
            headers=told.get("headers", {}),
        )

    async def _stream(self, request: web.Request, told: dict[str, Any]) -> web.StreamResponse:
        """Events; `pieces` splits them at odd places, `cut_after` aborts the connection after as many of them."""
        response = web.StreamResponse(headers={"content-type": told.get("type", "text/event-stream; charset=utf-8")})
        await response.prepare(request)
        data, size = b"".join(self.events), told.get("pieces")
        pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else self.events
        for number, piece in enumerate(pieces):
            if number == told.get("cut_after"):
                await asyncio.sleep(0.05)  # so that the pieces before have left this process's buffers
                request.transport.abort()
                return response
            await response.write(piece)
            await asyncio.sleep(0)  # so that each piece is sent by itself
        return response

    async def _drip(self, request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        """One event, then silence until `go_on` or the client leaves."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(EVENTS[0])
        await self._wait()
        await response.write(EVENTS[-1])
        return response

    async def _silent(self, _: web.Request, __: dict[str, Any]) -> web.Response:
        await self._wait()
        return web.json_response({"from": self.name})

    async def _wait(self) -> None:
        while not self.go_on.is_set():  # noqa: ASYNC110  set by a thread
            await asyncio.sleep(0.01)

    async def _die(self, request: web.Request, _: dict[str, Any]) -> web.Response:
        request.transport.abort()
        return web.Response()


class RunningGateway:
    """The gateway's app in uvicorn, configured as `tessera.web.serve` does it."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings)
        self._server = server(self.app, host="127.0.0.1", port=0, http=settings.http)
        self._server.drain_s = min(settings.http.drain_s, 5.0)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started or not self._thread.is_alive(), "the gateway to start")
        self.port: int = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def collaborator(self, name: str) -> Any:
        """What the gateway's handlers get under this name."""
        return asyncio.run(self.app.dependencies[name]())

    def knows(self, *names: str) -> RunningGateway:
        """Wait until the polls have found these models."""
        upstreams = self.collaborator("upstreams")
        wait_until(lambda: set(names) <= {model.id for model in upstreams.models()}, f"models {names}")
        return self

    def metric(self, name: str, **labels: str) -> float:
        from prometheus_client.parser import text_string_to_metric_families

        text = httpx.get(self.url + "/metrics").text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0


@pytest.fixture
def upstream() -> Iterator[Callable[..., FakeUpstream]]:
    """Makes upstreams: `upstream("model", …, name=…)`, with cards as `Model`s or without as names."""
    made: list[FakeUpstream] = []

    def make(*models: Model | str, name: str = "fake") -> FakeUpstream:
        entries = [model if isinstance(model, Model) else Model(id=model, created=1) for model in models]
        made.append(FakeUpstream(*entries, name=name).start())
        return made[-1]

    yield make
    for fake in made:
        fake.close()


@pytest.fixture
def gateway_of() -> Iterator[Callable[[Settings], RunningGateway]]:
    """Starts gateways from whole settings."""
    running: list[RunningGateway] = []

    def start(settings: Settings) -> RunningGateway:
        running.append(RunningGateway(settings))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def gateway(gateway_of: Callable[[Settings], RunningGateway]) -> Callable[..., RunningGateway]:
    """Starts gateways without aliases: `gateway(upstream, …, api_keys=[…])`; other arguments are gateway settings."""

    def start(*fakes: FakeUpstream, keys: dict[str, str] | None = None, **values: Any) -> RunningGateway:
        entries = [
            UpstreamSettings(name=fake.name, url=fake.url, api_key=(keys or {}).get(fake.name, "")) for fake in fakes
        ]
        settings = Settings(gateway=GatewaySettings(**{"services": [], "upstreams": entries, "aliases": {}, **values}))
        return gateway_of(settings).knows(*{model.id for fake in fakes for model in fake.models})

    return start


@pytest.fixture
def wait() -> Callable[[Callable[[], Any], str], Any]:
    """`wait(condition, what)`: polls with a deadline."""
    return wait_until


@pytest.fixture
def model() -> Callable[..., Model]:
    """`model("name", "task", …)`: a model with a card."""
    return described


@pytest.fixture
def events() -> list[bytes]:
    """What a `stream` sends."""
    return EVENTS
