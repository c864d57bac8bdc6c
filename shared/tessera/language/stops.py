"""Finds stop strings in streamed text, even across the borders of tokens.

Text that could be the beginning of a stop string is held back until more text decides.
"""

from __future__ import annotations


class StopFinder:
    """Passes text on up to the first stop string.

    Args:
        stops: the stop strings; may be empty.

    Attributes:
        matched: the stop string that is complete; None while none is.
    """

    def __init__(self, stops: list[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    @property
    def found(self) -> bool:
        """Whether a stop string is complete."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Add text; returns what can be shown. Sets `matched` when a stop string is complete."""
        if not self._stops:
            return text
        self._held += text
        hits = [(position, stop) for stop in self._stops if (position := self._held.find(stop)) >= 0]
        if hits:
            position, self.matched = min(hits)
            shown, self._held = self._held[:position], ""
            return shown
        keep = max(self._overlap(stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text that is still held back when no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest suffix of the held text that is a prefix of `stop`."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
