"""Live sessions through the gateway: relays messages between a client's WebSocket and one to an upstream.

A client that is not admitted is refused by HTTP, before there is a WebSocket. A client that leaves ends its session
upstream; if the connection to the upstream is cut, the client gets an `error` event before the session ends. Reads
no events but those that name models (`live_names`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from litestar import WebSocket, websocket
from litestar.datastructures import State
from litestar.exceptions import WebSocketDisconnect

from tessera.engine.waits import WaitMeter
from tessera.errors import BadGatewayError, RateLimitError, TesseraError, UnavailableError
from tessera.web.dependencies import Injected
from tessera.web.draining import draining, stopping_error
from tessera.web.errors import envelope
from tessera.web.middleware import request_id_from
from tessera.web.tenant import TENANT_HEADER
from tessera.wire.models import Task
from tessera_gateway.keys import Keys
from tessera_gateway.live_names import UPDATE, with_own_names
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.upstream import Upstream
from tessera_gateway.upstreams import Upstreams

logger = logging.getLogger(__name__)

PATH = "/v1/realtime"
KEY_PROTOCOL = "openai-insecure-api-key."
"""Prefix of the subprotocol by which a browser, which cannot set headers, sends its key; OpenAI's clients use it."""
HEARING: tuple[Task, ...] = ("transcription", "speech")
"""Tasks of the models whose service carries live sessions."""
HEARTBEAT_S = 20.0
"""Seconds between two pings to the upstream."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Most bytes of a message from the upstream."""
SERVICE_RESTART = 1012
"""Close code of a session that a stopping server ends."""
UPSTREAM_CUT = 1011
"""Close code of a session whose upstream was cut."""


class LiveProxy:
    """Carries live sessions.

    Args:
        upstreams: the servers that may carry a session.
        session: pool of connections to them.
        metrics: metrics of the gateway.
        keys: the accepted API keys.
        max_sessions: live sessions that one key may have open at once.
        connect_timeout_s: most seconds to connect to an upstream.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        keys: Keys,
        *,
        max_sessions: int,
        connect_timeout_s: float,
    ) -> None:
        self.upstreams = upstreams
        self.keys = keys
        self._session = session
        self._metrics = metrics
        self._max_sessions = max_sessions
        self._timeout_s = connect_timeout_s
        self._open: Counter[str] = Counter()
        self._meters: defaultdict[str, WaitMeter] = defaultdict(WaitMeter)

    async def carry(self, socket: WebSocket[Any, Any, State]) -> None:
        """Carry a session from its handshake to its end."""
        with contextlib.ExitStack() as held:
            try:
                owner = self._admitted(socket)
                held.enter_context(self._session_slot(owner))
                upstream, upstream_socket = await self._connect(socket, owner)
            except TesseraError as error:
                await _deny(socket, error)
                return
            upstream.in_flight += 1
            try:
                await socket.accept(subprotocols="realtime" if "realtime" in _protocols(socket) else None)
                await self._relay(socket, upstream_socket, upstream)
            finally:
                upstream.in_flight -= 1
                await upstream_socket.close()

    def _admitted(self, socket: WebSocket[Any, Any, State]) -> str:
        """The owner of a session that is admitted.

        Raises:
            AuthenticationError: a key is required, and there is none or a wrong one.
        """
        key = next(
            (name.removeprefix(KEY_PROTOCOL) for name in _protocols(socket) if name.startswith(KEY_PROTOCOL)), ""
        )
        return self.keys.owner_in(socket.headers, key)

    @contextlib.contextmanager
    def _session_slot(self, owner: str) -> Iterator[None]:
        meter, opened = self._meters[owner], self._open[owner]
        if opened >= self._max_sessions:
            wait_s = meter.wait(opened, ahead=1)
            raise RateLimitError(
                f"this key has {self._max_sessions} live sessions open, which is the limit; close one, or try again in "
                f"about {wait_s:.0f} s, after which one has ended so far",
                retry_after=wait_s,
            )
        self._open[owner] += 1
        meter.came(1, opened + 1)
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    async def _connect(
        self, socket: WebSocket[Any, Any, State], owner: str
    ) -> tuple[Upstream, aiohttp.ClientWebSocketResponse]:
        query = dict(socket.query_params.items())
        for upstream in await self._services(query):
            if not upstream.ours:
                continue
            url = f"{upstream.url}{PATH}" + (f"?{urlencode(query)}" if query else "")
            headers = {TENANT_HEADER: owner, "x-request-id": request_id_from(socket.scope), **upstream.headers}
            try:
                async with asyncio.timeout(self._timeout_s):
                    upstream_socket = await self._session.ws_connect(
                        url, headers=headers, heartbeat=HEARTBEAT_S, max_msg_size=MAX_FRAME_BYTES, autoclose=True
                    )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._metrics.errors.labels(upstream.name, "unreachable").inc()
                logger.warning("no live session with upstream %s: %s", upstream.name, error or type(error).__name__)
                continue
            upstream.sent += 1
            return upstream, upstream_socket
        raise UnavailableError("no speech service can be reached for a live session now; try again", retry_after=2)

    async def _services(self, query: dict[str, str]) -> list[Upstream]:
        """The upstreams that may carry a session, from its query, in which the model gets its own name.

        The model is the language model of a conversation, or one that hears or speaks: then its service carries the
        session, and the language model is the first that there is.

        Raises:
            ModelNotFoundError, InvalidRequestError, UnavailableError: for the reasons of `Upstreams.candidates`.
        """
        if name := query.pop("model", ""):
            transcribes = query.get("intent") == "transcription"
            model = await self.upstreams.model(await self.upstreams.resolve(name))
            tasks = model.card.tasks if model.card else []
            for task in HEARING:
                if task in tasks:
                    return await self.upstreams.candidates(model.id, task)
            # Refuses a model that can do neither.
            await self.upstreams.candidates(name, "transcription" if transcribes else "chat")
            query["model"] = model.id
        card = await self.upstreams.card(None, "transcription")
        return await self.upstreams.candidates(card.id, "transcription")

    async def _relay(
        self, socket: WebSocket[Any, Any, State], upstream_socket: aiohttp.ClientWebSocketResponse, upstream: Upstream
    ) -> None:
        sending = asyncio.create_task(_to_upstream(socket, upstream_socket, self.upstreams))
        receiving = asyncio.create_task(_to_client(socket, upstream_socket))
        stop = asyncio.Event()
        stopping = asyncio.create_task(stop.wait())
        with draining().ended_by(stop.set):
            done, waiting = await asyncio.wait({sending, receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
        for task in done:
            if not task.cancelled() and task.exception() is not None:
                logger.warning("a live session with upstream %s broke: %r", upstream.name, task.exception())
        if sending in done:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            if stopping in done:
                await socket.send_data(_event(stopping_error()).decode())
                await socket.close(SERVICE_RESTART)
                return
            code = upstream_socket.close_code or UPSTREAM_CUT
            if code not in {1000, 1001, 1008, 1009, SERVICE_RESTART, 1013}:
                self._metrics.errors.labels(upstream.name, "cut").inc()
                cut = BadGatewayError(f"the upstream {upstream.name} cut the session; connect again")
                await socket.send_data(_event(cut).decode())
                code = UPSTREAM_CUT
            await socket.close(code)


async def _to_upstream(
    socket: WebSocket[Any, Any, State], upstream_socket: aiohttp.ClientWebSocketResponse, upstreams: Upstreams
) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text, data = message.get("text"), message.get("bytes")
        if isinstance(text, str):
            await upstream_socket.send_str(await with_own_names(text, upstreams) if UPDATE in text else text)
        else:
            await upstream_socket.send_bytes(data if isinstance(data, bytes) else b"")


async def _to_client(socket: WebSocket[Any, Any, State], upstream_socket: aiohttp.ClientWebSocketResponse) -> None:
    async for message in upstream_socket:
        if message.type == aiohttp.WSMsgType.TEXT:
            await socket.send_data(message.data)
        elif message.type == aiohttp.WSMsgType.BINARY:
            await socket.send_data(message.data, mode="binary")


def _protocols(socket: WebSocket[Any, Any, State]) -> list[str]:
    return [name.strip() for name in socket.headers.get("sec-websocket-protocol", "").split(",")]


def _event(error: TesseraError) -> bytes:
    body = error.body()
    told = {"type": body.type, "code": body.code, "message": body.message, "param": body.param, "event_id": None}
    return msgspec.json.encode({"type": "error", "event_id": "event_gateway", "error": told})


async def _deny(socket: WebSocket[Any, Any, State], error: TesseraError) -> None:
    """Answer the handshake with the error's status and envelope."""
    headers = [(b"content-type", b"application/json")]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    start: Any = {"type": "websocket.http.response.start", "status": error.status, "headers": headers}
    body: Any = {"type": "websocket.http.response.body", "body": envelope(error), "more_body": False}
    await socket.receive()  # the handshake
    await socket.send(start)
    await socket.send(body)


@websocket(PATH)
async def realtime(socket: WebSocket[Any, Any, State], live: Injected[LiveProxy]) -> None:
    """OpenAI's Realtime events, to and from the speech service."""
    await live.carry(socket)
