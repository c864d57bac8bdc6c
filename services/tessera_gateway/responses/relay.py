"""Passes a response on as bytes, except for the few events that hold the whole response object.

`response.created`, `response.in_progress` and the last event of a stream are decoded, changed and kept; a JSON answer
is one such object. Every other byte is passed on as it came. A stream that its upstream breaks off ends with
`response.failed`, which the SDKs know. Does not know what is changed, nor where it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar.types import ASGIApp, HTTPResponseStartEvent, Message, Receive, Scope, Send

from tessera.errors import TesseraError
from tessera.web.sse import event
from tessera.wire.decoding import DAMAGED

Finish = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Keeps a response that has ended; returns it as the client gets it."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Most bytes of an event that is held to be changed; a longer one is passed on as it is."""
_WHOLE = re.compile(rb'"type": ?"(response\.(?:created|queued|in_progress|completed|incomplete|failed))"')
_OBJECT = b'"response":'
"""What every event with a response object has, and no other; looked for first, because it is looked for in each."""
_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')
_FAILURE = b'data: {"error"'
_END = b"\n\n"


class ResponseTail:
    """What is needed to end a stream of typed events that breaks off, from the events that passed."""

    def __init__(self) -> None:
        self.ended = False
        """Whether its last event has passed."""
        self._created = b""
        self._last = b""
        """The last bytes that have a number, in which the next event's is found."""

    def saw(self, piece: bytes) -> None:
        """Know whole events that passed, as the upstream wrote them."""
        if b"sequence_number" in piece:
            self._last = piece
        if _OBJECT not in piece:
            return
        for one in piece.split(_END):
            if found := _WHOLE.search(one):
                kind = found[1].decode()
                self.ended = self.ended or kind in ENDS
                if kind == "response.created":
                    self._created = one

    def failure(self, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
        """The event that says that there will be no more: `response.failed`, or `error` before a response began."""
        numbers = _NUMBER.findall(self._last)
        number = int(numbers[-1]) + 1 if numbers else 0
        created = _decoded(_data_of(self._created))
        if created is None:
            return {"type": "error", "code": code, "message": message, "param": param, "sequence_number": number}
        failed = {"status": "failed", "error": {"code": "server_error", "message": message}}
        return {"type": "response.failed", "sequence_number": number, "response": {**created["response"], **failed}}

    def event(self, error: TesseraError) -> bytes:
        """The end of a stream that broke off; nothing if it had ended."""
        if self.ended:
            return b""
        shown = error.body()
        failure = self.failure(shown.message, shown.code, shown.param)
        return event(failure, failure["type"])


class ResponseRelay:
    """A response on its way to the client, as an ASGI app.

    Args:
        inner: the upstream's response, whole events at a time.
        changed: changes a response object that has not ended.
        finish: called once, with the response object at its end, before the client gets it.
    """

    def __init__(
        self, inner: ASGIApp, changed: Callable[[dict[str, Any]], dict[str, Any]] | None, finish: Finish | None
    ) -> None:
        self._inner = inner
        self._changed = changed
        self._finish = finish
        self._start: HTTPResponseStartEvent | None = None
        self._is_events = False
        self._is_json = False
        self._held = bytearray()
        self._tail = ResponseTail()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the response on."""

        async def changing(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._begin(message, send)
            elif message["type"] == "http.response.body":
                await self._body(message.get("body", b""), message.get("more_body", False), send)
            else:
                await send(message)

        await self._inner(scope, receive, changing)

    async def _begin(self, message: HTTPResponseStartEvent, send: Send) -> None:
        kind = dict(message["headers"]).get(b"content-type", b"")
        self._is_events = kind.startswith(b"text/event-stream")
        self._is_json = message["status"] == 200 and kind.startswith(b"application/json") and self._finish is not None
        if self._is_json:
            self._start = message
        else:
            await send(message)

    async def _body(self, body: bytes, more: bool, send: Send) -> None:
        if self._is_json:
            self._held += body
            if not more:
                await self._whole(send)
            return
        if self._is_events:
            body = await self._events(body)
            if not more:
                body, self._held = body + bytes(self._held), bytearray()
        if body or not more:
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _whole(self, send: Send) -> None:
        data = bytes(self._held)
        decoded = _decoded(data)
        if decoded is not None and self._finish is not None and decoded.get("object") == "response":
            data = msgspec.json.encode(await self._finish(decoded))
        start = self._start
        assert start is not None
        kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        start["headers"] = [*kept, (b"content-length", str(len(data)).encode())]
        await send(start)
        await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _events(self, piece: bytes) -> bytes:
        """The bytes to pass on for a piece of a stream."""
        if not self._held and _OBJECT not in piece and not piece.startswith(_FAILURE):
            self._tail.saw(piece)
            return piece
        self._held += piece
        ready = bytearray()
        while (end := self._held.find(_END)) >= 0:
            one = bytes(self._held[: end + len(_END)])
            del self._held[: end + len(_END)]
            ready += await self._one(one)
        if len(self._held) > MAX_EVENT_BYTES:
            ready += self._held
            self._held.clear()
        return bytes(ready)

    async def _one(self, one: bytes) -> bytes:
        if one.startswith(_FAILURE):
            return await self._failed(one)
        self._tail.saw(one)
        if not _WHOLE.search(one):
            return one
        decoded = _decoded(_data_of(one))
        if decoded is None or not isinstance(decoded.get("response"), dict):
            return one
        kind = decoded["type"]
        if kind in ENDS:
            if self._finish is None:
                return one
            response = await self._finish(decoded["response"])
        elif self._changed is None:
            return one
        else:
            response = self._changed(decoded["response"])
        return event({**decoded, "response": response}, kind)

    async def _failed(self, one: bytes) -> bytes:
        """The end of a stream that broke off, in the protocol's own events."""
        if self._tail.ended:
            return b""
        said = (_decoded(_data_of(one)) or {}).get("error")
        error: dict[str, Any] = said if isinstance(said, dict) else {}
        message = str(error.get("message", "the stream broke off"))
        failure = self._tail.failure(message, error.get("code"), error.get("param"))
        if "response" in failure and self._finish is not None:
            failure["response"] = await self._finish(failure["response"])
        return event(failure, failure["type"])


def _data_of(one: bytes) -> bytes:
    return b"\n".join(line[5:].lstrip() for line in one.split(b"\n") if line.startswith(b"data:"))


def _decoded(data: bytes) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(data)
    except DAMAGED:
        return None
    return decoded if isinstance(decoded, dict) else None
