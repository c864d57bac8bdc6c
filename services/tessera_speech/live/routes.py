"""The WebSocket of live sessions: `/v1/realtime` of OpenAI's Realtime API.

Knows nothing about events; see `tessera_speech.live.session`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
from litestar import WebSocket, websocket

from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, OverloadedError, TesseraError
from tessera.web.dependencies import Injected
from tessera.web.draining import draining, stopping_error
from tessera.web.tenant import tenant_from, tenant_var
from tessera_speech.live.chat_client import ChatClient
from tessera_speech.live.conversation import new_id
from tessera_speech.live.session import LiveSession
from tessera_speech.live.settings import default_session
from tessera_speech.pipeline import SpeechHost

TRY_AGAIN_LATER = 1013
"""Close code of a refusal that may pass."""
POLICY = 1008
"""Close code of a refusal that stays."""
SERVICE_RESTART = 1012
"""Close code of a session that a stopping server ends."""
ClientSocket: TypeAlias = WebSocket[Any, Any, Any]


class LiveSessionLimit:
    """Limits how many sessions are open at once.

    Args:
        max_sessions: the limit.
    """

    def __init__(self, max_sessions: int) -> None:
        self.max_sessions = max_sessions
        self._open = 0
        self._meter = WaitMeter()

    @contextlib.contextmanager
    def count_session(self) -> Iterator[None]:
        """Count one session while the context is open.

        Raises:
            OverloadedError: as many sessions are open as may be; says when one is expected to end.
        """
        if self._open >= self.max_sessions:
            wait_s = self._meter.wait(self._open, ahead=1)
            raise OverloadedError(
                f"{self.max_sessions} live sessions are open, which is the limit; try again in about {wait_s:.0f} s",
                retry_after=wait_s,
            )
        self._open += 1
        self._meter.came(1, self._open)
        try:
            yield
        finally:
            self._open -= 1


@websocket("/v1/realtime")
async def realtime(
    socket: ClientSocket,
    host: Injected[SpeechHost],
    chat_client: Injected[ChatClient],
    live_sessions: Injected[LiveSessionLimit],
) -> None:
    """Serves one client until it leaves. `?intent=transcription` only transcribes; other sessions also answer."""
    tenant_var.set(tenant_from(socket.scope))  # of this connection's own context, and of the tasks of its session
    await socket.accept(subprotocols="realtime" if "realtime" in _offered(socket) else None)

    async def send(event: bytes) -> None:
        try:
            await socket.send_data(event.decode("utf-8"))
        except RuntimeError as error:  # a message after the connection's end
            raise ConnectionResetError("the client has left") from error

    with contextlib.ExitStack() as open_session:
        try:
            open_session.enter_context(live_sessions.count_session())
            session = await _session(socket, host, chat_client, send)
        except TesseraError as error:
            await send(_refusal(error))
            await socket.close(TRY_AGAIN_LATER if error.retryable else POLICY, error.message[:120])
            return
        stops: list[asyncio.Task[None]] = []

        async def stop() -> None:
            with contextlib.suppress(ConnectionResetError, RuntimeError):
                await send(_refusal(stopping_error()))
                await socket.close(SERVICE_RESTART)

        open_session.enter_context(draining().ended_by(lambda: stops.append(asyncio.create_task(stop()))))
        try:
            await session.begin()
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                data: Any = message.get("text") or message.get("bytes") or b""
                await session.receive(data)
        finally:
            await session.close()


async def _session(
    socket: ClientSocket, host: SpeechHost, chat_client: ChatClient, send: Callable[[bytes], Any]
) -> LiveSession:
    """The session that a client asks for.

    Raises:
        InvalidRequestError: there is no such kind of session.
        UnavailableError: the engine has not loaded yet.
    """
    intent = socket.query_params.get("intent", "realtime")
    if intent not in {"realtime", "transcription"}:
        raise InvalidRequestError("`intent` is `transcription`, or left out", param="intent")
    models = host.models().data
    tools = await host.tools(models[0].id if models else "")
    model = socket.query_params.get("model")
    settings = default_session("transcription" if intent == "transcription" else "realtime", model)
    # In a thread: the first session loads the voice activity model.
    return await asyncio.to_thread(
        LiveSession, tools, chat_client, send, tools.transcription.detector, settings, tenant_from(socket.scope)
    )


def _offered(socket: ClientSocket) -> list[str]:
    return [name.strip() for name in socket.headers.get("sec-websocket-protocol", "").split(",")]


def _refusal(error: TesseraError) -> bytes:
    body = error.body()
    fields = {"type": body.type, "code": body.code, "message": body.message, "param": body.param, "event_id": None}
    return msgspec.json.encode({"type": "error", "event_id": new_id("event"), "error": fields})
