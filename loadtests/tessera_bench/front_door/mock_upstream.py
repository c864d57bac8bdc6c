"""`python -m tessera_bench.front_door.mock_upstream PORT INTERVAL_S`: a server that costs little and answers at once.

A POST is answered by a short chat completion, or with `"stream": true` by as many events as `max_tokens` says, one to
every open stream at each tick, as an engine's step does. Lists one model, `mock`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"mock","choices":'
    b'[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
LAST = b"data: [DONE]\n\n"
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
).encode()
MODELS = json.dumps({"object": "list", "data": [{"id": "mock", "object": "model", "created": 1}]}).encode()


class MockUpstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, streams: dict[MockUpstream, int]) -> None:
        self.streams = streams
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.Protocol`."""
        self.transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        """Implement `asyncio.Protocol`."""
        self.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        """Implement `asyncio.Protocol`."""
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self.body += body

    def on_message_complete(self) -> None:
        """Called by the parser: answer."""
        body, self.body = self.body, b""
        given = json.loads(body) if body else {}
        if given.get("stream"):
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            self.transport.write(head + b"x-request-id: req_0\r\ntransfer-encoding: chunked\r\n\r\n")
            self.streams[self] = int(given.get("max_tokens", 16))
            return
        answer = COMPLETION if body else MODELS
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_0\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(answer) + answer)


async def serve(port: int, interval_s: float) -> None:
    """Serve for ever."""
    streams: dict[MockUpstream, int] = {}
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: MockUpstream(streams), "127.0.0.1", port)
    event = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
    last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST)
    while True:
        await asyncio.sleep(interval_s)
        for stream, left in list(streams.items()):
            stream.transport.write(event if left else last)
            if left:
                streams[stream] = left - 1
            else:
                del streams[stream]


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
