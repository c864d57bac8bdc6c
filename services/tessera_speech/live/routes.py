"""The WebSocket of live sessions: `/v1/realtime`, as OpenAI's Realtime API has it.

Does not know events: see `tessera_speech.live.session`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.datastructures import State

from tessera.engine.host import EngineHost
from tessera.errors import InvalidRequestError, OverloadedError, TesseraError
from tessera.web.origins import refuse_foreign_pages
from tessera.web.tenant import tenant_from
from tessera_speech.live.chat_client import ChatClient
from tessera_speech.live.conversation import new_id
from tessera_speech.live.session import LiveSession
from tessera_speech.live.settings import default_session
from tessera_speech.pipeline import SpeechTools

TRY_AGAIN_LATER = 1013
POLICY = 1008


class LiveSessionLimit:
    """How many sessions there may be at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    @contextlib.contextmanager
    def seat(self) -> Iterator[None]:
        """Hold one.

        Raises:
            OverloadedError: all are taken.
        """
        if self.taken >= self.most:
            raise OverloadedError(f"{self.most} live sessions are open, which is the limit; try again later")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


@websocket("/v1/realtime")
async def realtime(socket: WebSocket[Any, Any, State], state: State) -> None:
    """Events of one client until it leaves. `?intent=transcription` only writes down; otherwise it also answers."""
    await socket.accept(subprotocols="realtime" if "realtime" in _offered(socket) else None)

    async def send(event: bytes) -> None:
        try:
            await socket.send_data(event.decode("utf-8"))
        except RuntimeError as error:  # a message after the connection's end
            raise ConnectionResetError("the client has left") from error

    with contextlib.ExitStack() as held:
        try:
            refuse_foreign_pages(socket, advice="the gateway is the public address")
            held.enter_context(state.live_seats.seat())
            session = await _session(socket, state, send)
        except TesseraError as error:
            await send(_refusal(error))
            await socket.close(TRY_AGAIN_LATER if error.retryable else POLICY, error.message[:120])
            return
        try:
            await session.begin()
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                await session.receive(message.get("text") or message.get("bytes") or b"")
        finally:
            await session.close()


async def _session(socket: WebSocket[Any, Any, State], state: State, send: Callable[[bytes], Any]) -> LiveSession:
    """The session that a client asks for.

    Raises:
        InvalidRequestError: it asks for another kind than there is.
        UnavailableError: the engine has not loaded yet.
    """
    host: EngineHost[SpeechTools] = state.host
    thinker: ChatClient = state.thinker
    intent = socket.query_params.get("intent", "realtime")
    if intent not in {"realtime", "transcription"}:
        raise InvalidRequestError("`intent` is `transcription`, or left out", param="intent")
    models = host.models().data
    tools = await host.tools(models[0].id if models else "")
    model = socket.query_params.get("model")
    settings = default_session("transcription" if intent == "transcription" else "realtime", model)
    # In a thread: the first session loads the model that finds speech.
    return await asyncio.to_thread(
        LiveSession, tools, thinker, send, tools.transcription.detector, settings, tenant_from(socket.scope)
    )


def _offered(socket: WebSocket[Any, Any, State]) -> list[str]:
    return [name.strip() for name in socket.headers.get("sec-websocket-protocol", "").split(",")]


def _refusal(error: TesseraError) -> bytes:
    body = error.body()
    fields = {"type": body.type, "code": body.code, "message": body.message, "param": body.param, "event_id": None}
    return msgspec.json.encode({"type": "error", "event_id": new_id("event"), "error": fields})
