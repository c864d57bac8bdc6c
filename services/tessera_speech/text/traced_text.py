"""A text that is rewritten and still knows where each of its characters comes from. Knows nothing about the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Span = tuple[int, int]
Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
"""What is replaced, and by what."""


class TracedText:
    """A text with origins.

    Args:
        text: as it is now.
        origins: for each character, from where to where (excluded) in the first text what it stands for was; None: the
            text is the first one.
    """

    def __init__(self, text: str, origins: Sequence[Span] | None = None) -> None:
        self.text = text
        self.origins = [(at, at + 1) for at in range(len(text))] if origins is None else list(origins)
        assert len(self.origins) == len(text)

    def cut(self, begin: int, end: int) -> TracedText:
        """A part of it."""
        return TracedText(self.text[begin:end], self.origins[begin:end])

    def map(self, say: Callable[[str], str]) -> TracedText:
        """Each character replaced by what `say` makes of it."""
        made = [say(character) for character in self.text]
        origins = [origin for new, origin in zip(made, self.origins, strict=True) for _ in new]
        return TracedText("".join(made), origins)

    def sub(self, pattern: re.Pattern[str], say: Callable[[re.Match[str]], str]) -> TracedText:
        """As `pattern.sub`; what is written anew comes from all that was matched, or from what stands before it."""
        parts: list[str] = []
        origins: list[Span] = []
        last = 0
        for match in pattern.finditer(self.text):
            new = say(match)
            parts += [self.text[last : match.start()], new]
            origins += self.origins[last : match.start()]
            matched = (
                self.origins[match.start() : match.end()] or self.origins[max(0, match.start() - 1) : match.start()]
            )
            if new == match[0]:
                origins += matched
            elif new:
                found = matched or [(0, 0)]
                origins += [(min(begin for begin, _ in found), max(end for _, end in found))] * len(new)
            last = match.end()
        return TracedText("".join([*parts, self.text[last:]]), [*origins, *self.origins[last:]])
