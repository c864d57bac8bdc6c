"""Passes server-sent events on whole: their bytes stay as they are, but no event is passed on before its end.

If the connection is cut within an event, the client has the events before it, and an error event that the gateway adds
is an event of its own. Does not know what is in the events.
"""

from __future__ import annotations

MAX_HELD_BYTES = 1024 * 1024
"""Most bytes of an unfinished event that are held; a longer event is passed on in pieces, so memory is bounded."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class WholeEvents:
    """Cuts a stream of bytes after the ends of events."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """The bytes up to the last end of an event; the rest is held until its end arrives."""
        if not self._held and piece.endswith(_ENDS):
            return piece
        # An end can begin in what is held, at most three bytes before the new piece.
        start = max(0, len(self._held) - 3)
        self._held += piece
        end = max((at + len(mark) for mark in _ENDS if (at := self._held.rfind(mark, start)) >= 0), default=0)
        if len(self._held) - end > MAX_HELD_BYTES:
            end = len(self._held)
        ready = bytes(self._held[:end])
        del self._held[:end]
        return ready

    def rest(self) -> bytes:
        """The bytes that are still held when the stream has ended regularly."""
        rest = bytes(self._held)
        self._held.clear()
        return rest
