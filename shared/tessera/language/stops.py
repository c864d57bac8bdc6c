"""Finds stop strings in streamed text, even across the borders of tokens.

Text that could be the beginning of a stop string is held back until more text decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.wire.chat import SamplingRequest


@dataclass(frozen=True)
class TextTerms:
    """What ends a text, and what of it is shown.

    Attributes:
        stops: stop strings.
        stop_ids: tokens that end the text because the request says so.
        least: tokens of which none ends a stop string.
        includes_stop: whether the text has what ended it.
        control: whether the text has control tokens.
    """

    stops: list[str]
    stop_ids: frozenset[int] = frozenset()
    least: int = 0
    includes_stop: bool = False
    control: bool = False

    @classmethod
    def of(cls, request: SamplingRequest) -> TextTerms:
        """The terms that a request asks for."""
        given = [request.stop] if isinstance(request.stop, str) else request.stop or []
        return cls(
            [stop for stop in given if stop],
            frozenset(request.stop_token_ids or ()),
            request.min_tokens,
            request.include_stop_str_in_output,
            not request.skip_special_tokens,
        )


class StopFinder:
    """Passes text on up to the first stop string.

    Args:
        stops: the stop strings; may be empty.
        included: whether the stop string itself is shown.

    Attributes:
        matched: the stop string that is complete; None while none is.
    """

    def __init__(self, stops: list[str], *, included: bool = False) -> None:
        self._stops = stops
        self._included = included
        self._held = ""
        self._passed = 0
        """Characters of the held text in which no stop string may end."""
        self.matched: str | None = None

    @property
    def found(self) -> bool:
        """Whether a stop string is complete."""
        return self.matched is not None

    def push(self, text: str, *, may_end: bool = True) -> str:
        """Add text; returns what can be shown. Sets `matched` when a stop string is complete.

        Args:
            text: of the next token.
            may_end: whether a stop string may end in this text; it may begin in any.
        """
        if not self._stops:
            return text
        self._held += text
        if not may_end:
            self._passed = len(self._held)
        hits = [(position, stop) for stop in self._stops if (position := self._find(stop)) >= 0]
        if hits:
            position, self.matched = min(hits)
            end = position + len(self.matched) if self._included else position
            shown, self._held = self._held[:end], ""
            return shown
        keep = max(self._overlap(stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        self._passed = max(0, self._passed - cut)
        return shown

    def flush(self) -> str:
        """The text that is still held back when no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _find(self, stop: str) -> int:
        """Where the held text has a stop string that may end there; -1 if it has none."""
        return self._held.find(stop, max(0, self._passed - len(stop) + 1))

    def _overlap(self, stop: str) -> int:
        """Length of the longest suffix of the held text that is a prefix of `stop`."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
