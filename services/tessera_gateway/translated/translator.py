"""Serves a protocol over any upstream: passed through where the upstream has the route, else translated to chat.

An upstream of another make that answers that it has no such route is asked for a chat completion at once, and that it
lacks the route is remembered for a while (`lacking`). The client's disconnect cancels the upstream; a failure after
the first event ends the stream as the protocol says. Memory is bounded by one event, or one whole answer.

Knows no protocol (`tessera.protocols.translation`), and not how an upstream is reached (`proxy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import aiohttp
import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from tessera.errors import BadGatewayError, InvalidRequestError, TesseraError
from tessera.protocols.translation import Translation, translated
from tessera.web.dependencies import HTTPRequest
from tessera.web.sse import PING, framed
from tessera.wire.chat import ChatCompletionChunk, ChatCompletionRequest
from tessera.wire.models import Task
from tessera_gateway.exchange import SentHeaders, UpstreamResponse
from tessera_gateway.limits import Body
from tessera_gateway.proxy import Proxy, Relay, unless_gone
from tessera_gateway.translated.chat_body import chat_body
from tessera_gateway.translated.event_data import EventData
from tessera_gateway.translated.failures import failure_of
from tessera_gateway.translated.foreign import ForeignReader, as_chunk
from tessera_gateway.translated.lacking import LACKING, LackingRoutes
from tessera_gateway.upstream import Upstream

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Most bytes of a whole answer of an upstream."""
MAX_ERROR_BYTES = 64 * 1024
"""Most bytes that are read of an upstream's error."""
EVENTS = "text/event-stream; charset=utf-8"


class Translator:
    """Answers requests of protocols by upstreams.

    Args:
        proxy: reaches them.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._lacking = LackingRoutes()

    async def forward(
        self,
        request: HTTPRequest,
        body: Body,
        make: Callable[[], Translation[Any]],
        *,
        native: str | None,
        task: Task = "chat",
        path: str = "/v1/chat/completions",
        encode: Callable[[ChatCompletionRequest, str], bytes] = chat_body,
        stream_type: str | None = EVENTS,
    ) -> ASGIApp:
        """Answer one request.

        Args:
            request: of the client; its body has been read.
            body: the body as it arrived.
            make: makes the translation; called only where one is needed. It raises for what cannot be translated.
            native: the protocol's own route, which an upstream may have; None if none has it.
            task: what the model must be able to do.
            path: the route that is asked with the translated request.
            encode: writes the translated request, for the model of this name.
            stream_type: content type of the protocol's streams; None: an upstream's stream becomes one answer, which
                is sent when it is whole.

        Raises:
            TesseraError: for the reasons of `Proxy.first_answer`; or the upstream refused the translated request.
        """
        body = await self._proxy.with_own_name(body)
        headers = SentHeaders.of(request, body.content_type)
        used: list[Translation[Any]] = []

        async def ask(upstream: Upstream) -> UpstreamResponse:
            used.clear()
            lacked = False
            if native is not None and not self._lacking.lacks(upstream.name, native):
                answer = await self._proxy.ask(upstream, native, body.data, headers)
                lacked = not upstream.ours and answer.response.status in LACKING
                if not lacked:
                    return answer
                self._proxy.finish(answer)
            used.append(make())
            if used[0].chat.continue_final_message and not upstream.continues(body.model):
                raise InvalidRequestError(
                    f"`messages` end with the assistant's turn, and the upstream {upstream.name} is not known to go on "
                    f"with one; end with a user's turn",
                    param="messages",
                )
            answer = await self._proxy.ask(upstream, path, encode(used[0].chat, body.model), headers)
            if lacked and native is not None and answer.response.status not in LACKING:
                logger.info("upstream %s has no %s; its requests are translated", upstream.name, native)
                self._lacking.learn(upstream.name, native)
            return answer

        answer, gone = await self._proxy.first_answer(request, body.model, task, ask, body.cache_key)
        if not used:
            return Relay(answer, gone, self._proxy)
        exchange = TranslatedExchange(answer, used[0], body.model, self._proxy)
        try:
            return await unless_gone(gone, exchange.begin(gone, stream_type))
        except BaseException:
            gone.cancel()
            self._proxy.finish(answer)
            raise

    async def whole(
        self, request: HTTPRequest, model: str, task: Task, path: str, encode: Callable[[Upstream], bytes]
    ) -> tuple[str, bytes]:
        """The name of an upstream and its whole answer to the JSON that `encode` writes for it.

        Raises:
            TesseraError: for the reasons of `Proxy.first_answer`; or the upstream refused or failed.
        """
        headers = SentHeaders.of(request, "application/json")

        async def ask(upstream: Upstream) -> UpstreamResponse:
            return await self._proxy.ask(upstream, path, encode(upstream), headers)

        answer, gone = await self._proxy.first_answer(request, model, task, ask)
        try:
            return answer.upstream.name, await unless_gone(gone, self._read(answer))
        finally:
            gone.cancel()
            self._proxy.finish(answer)

    async def _read(self, answer: UpstreamResponse) -> bytes:
        try:
            if answer.response.status != 200:
                raise await refusal(answer)
            return await read_answer(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise cut_short(self._proxy, answer, error) from error


class TranslatedExchange:
    """A translated request whose upstream has begun to answer."""

    def __init__(self, answer: UpstreamResponse, translation: Translation[Any], model: str, proxy: Proxy) -> None:
        self.answer = answer
        self.translation = translation
        self.proxy = proxy
        self._reader = ForeignReader(answer.upstream.name, model)

    async def begin(self, gone: asyncio.Task[None], stream_type: str | None) -> ASGIApp:
        """The response, as soon as its status is certain.

        Raises:
            TesseraError: the upstream refused or failed.
        """
        response = self.answer.response
        try:
            if response.status != 200:
                raise await refusal(self.answer)
            if self.translation.chat.stream:
                pieces = translated(self.translation, self._chunks(bounded=stream_type is None))
                if stream_type is not None:
                    return TranslatedStream(self, await anext(pieces, b""), pieces, gone, stream_type)
                whole = b"".join([piece async for piece in pieces])
            else:
                completion = self._reader.completion(await read_answer(self.answer))
                whole = msgspec.json.encode(self.translation.answer(completion))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self.failure(error) from error
        gone.cancel()
        self.proxy.finish(self.answer)
        return TranslatedWhole(whole)

    def failure(self, error: Exception) -> TesseraError:
        """The error for an upstream that fell silent or cut the connection within its answer."""
        return cut_short(self.proxy, self.answer, error)

    async def _chunks(self, *, bounded: bool) -> AsyncGenerator[ChatCompletionChunk]:
        """The upstream's chunks; `bounded` if they are collected and so may not be more than a whole answer."""
        response = self.answer.response
        if response.content_type != "text/event-stream":
            yield as_chunk(self._reader.completion(await read_answer(self.answer)))
            return
        events = EventData()
        piece, size = self.answer.first, 0
        while piece:
            size += len(piece)
            if bounded and size > MAX_ANSWER_BYTES:
                raise _too_large(self.answer)
            for data in events.feed(piece):
                if (chunk := self._reader.chunk(data)) is not None:
                    yield chunk
            piece = await response.content.readany()
        for data in events.rest():
            if (chunk := self._reader.chunk(data)) is not None:
                yield chunk


class TranslatedWhole:
    """A whole answer, as an ASGI app."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Send the answer with status 200."""
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(self.body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


class TranslatedStream:
    """A stream in the protocol's events, as an ASGI app. Owns the upstream's response and the task that waits for the
    client's disconnect."""

    def __init__(
        self,
        exchange: TranslatedExchange,
        first: bytes,
        pieces: AsyncGenerator[bytes],
        gone: asyncio.Task[None],
        content_type: str,
    ) -> None:
        self.exchange = exchange
        self.first = first
        self.pieces = pieces
        self.gone = gone
        self.content_type = content_type

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Pass the stream on. Closing the upstream's response wakes a pending read, so a client that leaves ends this
        at once."""
        exchange, answer = self.exchange, self.exchange.answer
        self.gone.add_done_callback(lambda _: answer.response.close())
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        ping = PING if self.content_type == EVENTS else b""
        stream = framed(self._pieces(), done=False, failed=exchange.translation.failed, ping=ping)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with contextlib.aclosing(stream) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.gone.cancel()
            exchange.proxy.finish(answer)

    async def _pieces(self) -> AsyncGenerator[bytes]:
        exchange = self.exchange
        try:
            yield self.first
            async with contextlib.aclosing(self.pieces) as pieces:
                async for piece in pieces:
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if self.gone.done():
                exchange.proxy.metrics.cancelled.labels(exchange.answer.upstream.name).inc()
                return
            raise exchange.failure(error) from error


async def read_answer(answer: UpstreamResponse) -> bytes:
    """A whole answer.

    Raises:
        BadGatewayError: it has more than `MAX_ANSWER_BYTES`.
    """
    found = await _read_up_to(answer, MAX_ANSWER_BYTES)
    if len(found) > MAX_ANSWER_BYTES:
        raise _too_large(answer)
    return found


async def refusal(answer: UpstreamResponse) -> TesseraError:
    """The error that an upstream answered."""
    response = answer.response
    body = await _read_up_to(answer, MAX_ERROR_BYTES)
    return failure_of(
        answer.upstream.name, response.status, body[:MAX_ERROR_BYTES], response.headers.get("retry-after")
    )


def cut_short(proxy: Proxy, answer: UpstreamResponse, error: Exception) -> TesseraError:
    """The error for an upstream that fell silent or cut the connection within its answer; counts it."""
    upstream = answer.upstream
    proxy.metrics.errors.labels(upstream.name, "timeout" if isinstance(error, TimeoutError) else "cut").inc()
    logger.warning("upstream %s failed within an answer: %s", upstream.name, error)
    if isinstance(error, TimeoutError):
        return proxy.silent(upstream)
    return BadGatewayError(f"the upstream {upstream.name} cut the connection within its answer")


async def _read_up_to(answer: UpstreamResponse, most: int) -> bytes:
    """The body, or a little more than `most` bytes of it."""
    found = bytearray(answer.first)
    while len(found) <= most and (piece := await answer.response.content.readany()):
        found += piece
    return bytes(found)


def _too_large(answer: UpstreamResponse) -> BadGatewayError:
    return BadGatewayError(f"the upstream {answer.upstream.name} answered more than {MAX_ANSWER_BYTES} bytes")
