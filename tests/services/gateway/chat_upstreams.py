"""Servers of other makes behind a gateway: they speak chat completions and lack other protocols' routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tessera.wire.models import Model

DEADLINE_S = 20.0


class ChatUpstream:
    """Answers `/v1/chat/completions` as the test has scripted it, and 404 for every other route.

    Attributes:
        requests: path, headers and decoded body of every request, in order.
        reply: the next answers: a dictionary is a whole answer, a list of dictionaries is a stream; an `Exception`
            aborts the connection there, a callable is called with the request.
        native: routes that it has beside chat completions, with their answers.
        owned_by: who serves its models, as its list says; None says nothing.
    """

    def __init__(self, *models: str, name: str = "foreign") -> None:
        self.models = [Model(id=model, created=1) for model in models]
        self.name = name
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.reply: Any = {}
        self.status = 200
        self.native: dict[str, Any] = {}
        self.lacking_status = 404
        self.owned_by: str | None = None
        self.left = threading.Event()
        self.began = threading.Event()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    def start(self) -> ChatUpstream:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(DEADLINE_S)
        return self

    def close(self) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": model.id, "owned_by": self.owned_by} for model in self.models]}
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body: Any = await request.read()
        with contextlib.suppress(ValueError):
            body = json.loads(body)
        self.requests.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        reply = self.native.get(request.path)
        if reply is None:
            if request.path not in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
                return web.json_response({"detail": "Not Found"}, status=self.lacking_status)
            reply = self.reply
        try:
            return await self._given(request, reply)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise

    async def _given(self, request: web.Request, reply: Any) -> web.StreamResponse:
        if isinstance(reply, Callable):  # type: ignore[arg-type]
            reply = reply(request)
        if isinstance(reply, bytes):
            return web.Response(body=reply, status=self.status, content_type="application/json")
        if isinstance(reply, dict):
            return web.json_response(reply, status=self.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each in reply:
            if each is Ellipsis:
                self.began.set()
                await asyncio.sleep(DEADLINE_S)
            elif isinstance(each, Exception):
                await asyncio.sleep(0.05)  # so that the events before have left this process's buffers
                assert request.transport is not None
                request.transport.abort()
                return response
            else:
                data = each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() + b"\n\n"
                await response.write(data)
        return response


def chunk(index: int = 0, *, finish: Any = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    """A chunk as other servers write it: with keys that ours do not have."""
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None, "shiny": {"a": 1}}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1.5,
        "model": "else",
        "service_tier": "default",
        "choices": [choice],
        **({} if usage is None else {"usage": usage}),
    }


def whole(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    """A whole answer as other servers write it."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "shiny": None}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "else", "choices": [choice]}
