"""The data of server-sent events, out of bytes that come in pieces of any size. Does not know what is in the data."""

from __future__ import annotations

import re

from tessera.errors import BadGatewayError

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Most bytes of one event, and so the memory that a stream takes."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventData:
    """Reads one stream."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._lines: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that `piece` completes.

        Raises:
            BadGatewayError: an event has more than `MAX_EVENT_BYTES`.
        """
        self._held += piece
        found: list[bytes] = []
        start = 0
        for end in _LINE_END.finditer(self._held):
            if end.group() == b"\r" and end.end() == len(self._held):
                break  # the other half of its end may come yet
            self._take(bytes(self._held[start : end.start()]), found)
            start = end.end()
        del self._held[:start]
        if len(self._held) + self._size > MAX_EVENT_BYTES:
            raise BadGatewayError("the upstream sent an event that is too large")
        return found

    def rest(self) -> list[bytes]:
        """The data of an event at the end of the stream that has no empty line behind it."""
        found: list[bytes] = []
        self._take(bytes(self._held).rstrip(b"\r"), found)
        self._take(b"", found)
        self._held.clear()
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._lines:
                found.append(b"\n".join(self._lines))
            self._lines, self._size = [], 0
        elif line.startswith(b"data:"):
            self._lines.append(line[5:].removeprefix(b" "))
            self._size += len(line)
