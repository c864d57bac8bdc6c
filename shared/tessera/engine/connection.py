"""Frames of engine messages on a Unix socket: a length of four bytes, big-endian, then MessagePack.

Does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import socket
import struct

import msgspec

from tessera.wire.engine import MAX_MESSAGE_BYTES, FromEngine, ToEngine, encoder, to_engine_decoder

_LENGTH = struct.Struct(">I")


class BrokenFrameError(ConnectionError):
    """The other side sent something that is not a frame, or closed the connection within one."""


def frame(message: ToEngine | FromEngine) -> bytes:
    """Encode a message as a frame."""
    body = encoder.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise BrokenFrameError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> ToEngine | None:
    """Wait for the next message to an engine; None when the service has closed the connection."""
    head = _read(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_MESSAGE_BYTES:
        raise BrokenFrameError(f"a frame claims {length} bytes")
    body = _read(connection, length)
    if body is None:
        raise BrokenFrameError("the connection was closed within a message")
    try:
        message: ToEngine = to_engine_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BrokenFrameError(f"not a message for an engine: {error}") from error
    return message


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame's body.

    Raises:
        asyncio.IncompleteReadError: the connection was closed.
        BrokenFrameError: the frame is larger than a message may be.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_MESSAGE_BYTES:
        raise BrokenFrameError(f"a frame claims {length} bytes")
    return await reader.readexactly(length)
