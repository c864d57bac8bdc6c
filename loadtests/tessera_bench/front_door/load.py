"""Asks a server over connections that stay open, at little cost, and counts what comes back.

Does not know what is measured.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools

KEY = "sk-bench-0123456789abcdef0123456789abcdef"
"""What every request sends as its key."""
PROMPT = "the sea a mountain fresh bread an old clock heavy rain the market of our town " * 6


class Asking(asyncio.Protocol):
    """One connection that sends a request, again after each response, until `left` is empty.

    Args:
        request: head and body.
        left: a token for each request that is still to be sent, shared by all connections.
    """

    def __init__(self, request: bytes, left: list[int]) -> None:
        self.request = request
        self.left = left
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.body_bytes = 0
        self.parser: Any = None
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol`."""
        self.transport = transport
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.Protocol`."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self.parser.get_status_code() != 200:
            self.done.set_exception(RuntimeError(f"the server answered {self.parser.get_status_code()}"))
            return
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not self.left:
            self.done.set_result(None)
            self.transport.close()
            return
        self.left.pop()
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(self.request)


async def ask(port: int, *, requests: int, connections: int, tokens: int | None = None) -> int:
    """Send requests, as many at once as there are connections. Returns the bytes of all bodies that came back.

    Args:
        port: of the server, on this machine.
        requests: number of requests.
        connections: number of connections.
        tokens: length of a stream; None asks for a whole answer.
    """
    more = {} if tokens is None else {"stream": True, "max_tokens": tokens}
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": PROMPT}], **more}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: application/json\r\n"
        f"user-agent: OpenAI/Python 2.0\r\nauthorization: Bearer {KEY}\r\naccept-encoding: gzip, deflate\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    left = list(range(requests))
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Asking(head.encode() + body, left), "127.0.0.1", port)
        for _ in range(min(connections, requests))
    ]
    await asyncio.gather(*(asking.done for _, asking in made))
    return sum(asking.body_bytes for _, asking in made)
