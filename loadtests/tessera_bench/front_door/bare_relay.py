"""`python -m tessera_bench.front_door.bare_relay PORT UPSTREAM_PORT`: an asyncio relay that does nothing else.

Copies bytes between a client's connection and one of its own to the upstream, as asyncio's streams do it. Reads no
HTTP, keeps no pool, checks and counts nothing.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

READ_BYTES = 65536


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(READ_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port: int, upstream_port: int) -> None:
    """Serve for ever."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", upstream_port)
        await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
