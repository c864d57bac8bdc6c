"""A service without a model, as a process: its streams last as long as they are asked to.

`python stream_stand_in.py <port> <drain_s> <unready_s>`. It is built and served as every service of the suite is. At
the end of its lifespan it prints `parts closed`, and each stream that ends prints `stream ended`. Its live sessions
say again what they are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from litestar import Litestar, Response, WebSocket, post, websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.response import Stream
from prometheus_client import CollectorRegistry

from tessera.settings.http import HttpSettings
from tessera.web.app import build_app
from tessera.web.dependencies import HTTPRequest, provide
from tessera.web.models import MODEL_ROUTES
from tessera.web.serve import serve
from tessera.web.sse import event, stream_response
from tessera.wire.models import Card, Model, ModelList

CARD = Card(id="clock", family="Fake", tasks=["chat", "transcription"], source="test", parameters=1, licence="none")


@post("/v1/chat/completions", status_code=200)
async def chat(request: HTTPRequest) -> Stream | Response[dict[str, Any]]:
    """One event each tenth of a second, for `seconds`; without `stream` the answer comes at the end."""
    told = msgspec.json.decode(await request.body())

    async def events() -> AsyncIterator[bytes]:
        try:
            for number in range(int(10 * told["seconds"])):
                yield event({"n": number})
                await asyncio.sleep(0.1)
        finally:
            print("stream ended", flush=True)

    if told.get("stream"):
        return await stream_response(events())
    await asyncio.sleep(told["seconds"])
    return Response({"answered": True})


@websocket("/v1/realtime")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    """A live session, until its client leaves."""
    await socket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await socket.send_data(await socket.receive_text())


def main() -> None:
    port, drain_s, unready_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

    @contextlib.asynccontextmanager
    async def parts(_: Litestar) -> AsyncIterator[None]:
        yield
        print("parts closed", flush=True)

    async def ready() -> dict[str, str]:
        return {"engine": "ok"}

    app = build_app(
        "clock",
        [chat, echo, *MODEL_ROUTES],
        ready=ready,
        registry=CollectorRegistry(),
        description="",
        lifespan=[parts],
        dependencies={"models": provide(lambda: ModelList(data=[Model(id="clock", created=1, card=CARD)]))},
    )
    serve(app, host="127.0.0.1", port=port, http=HttpSettings(drain_s=drain_s, unready_s=unready_s))


if __name__ == "__main__":
    main()
