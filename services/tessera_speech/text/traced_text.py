"""A text that is rewritten and still knows where each of its characters comes from. Knows nothing about the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Span = tuple[int, int]
"""(First character, the one after the last)."""
Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
"""(pattern, replacement of a match)."""


class TracedText:
    """A text whose characters keep their origins in the original text.

    Args:
        text: the text after the rewriting so far.
        origins: span of the original text that each character stands for; None if the text is the original.
    """

    def __init__(self, text: str, origins: Sequence[Span] | None = None) -> None:
        self.text = text
        self.origins = [(at, at + 1) for at in range(len(text))] if origins is None else list(origins)
        assert len(self.origins) == len(text)

    def cut(self, begin: int, end: int) -> TracedText:
        """The characters `begin` to `end`."""
        return TracedText(self.text[begin:end], self.origins[begin:end])

    def map(self, replace: Callable[[str], str]) -> TracedText:
        """The text with each character replaced by the result of `replace`."""
        replaced = [replace(character) for character in self.text]
        origins = [origin for new, origin in zip(replaced, self.origins, strict=True) for _ in new]
        return TracedText("".join(replaced), origins)

    def sub(self, pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str]) -> TracedText:
        """Like `pattern.sub`. New characters have the origin of the whole match, or of the character before an empty
        match."""
        parts: list[str] = []
        origins: list[Span] = []
        last = 0
        for match in pattern.finditer(self.text):
            new = replace(match)
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
