"""Parses answers without tool calls: all text is content."""

from __future__ import annotations

from tessera.language.parsers.events import AnswerText, Event
from tessera.language.parsers.scanner import Scanner, Steps


class Plain(Scanner):
    """Emits all text as content."""

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        yield from ()

    def push(self, text: str) -> list[Event]:
        """Add text, which is content at once."""
        return [AnswerText(text)] if text else []
