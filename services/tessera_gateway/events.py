"""Server-sent events on their way through: bytes stay as they are, but an event is passed on only when it is whole.

So a connection that is cut within an event leaves the client with the events before it, and what the gateway adds
then (an error event) is read as an event of its own. Does not know what events say.
"""

from __future__ import annotations

MAX_HELD_BYTES = 1024 * 1024
"""A longer unfinished event is passed on in pieces: memory is bounded, whatever an upstream sends."""
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class WholeEvents:
    """Cuts a stream of bytes after the ends of events."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> bytes:
        """The bytes up to the last end of an event; what follows is held until its end comes."""
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
        """What is still held when the stream ended as it should."""
        rest = bytes(self._held)
        self._held.clear()
        return rest
