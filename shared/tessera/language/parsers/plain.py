"""Text without tool calls."""

from __future__ import annotations

from tessera.language.parsers.events import AnswerText, Event
from tessera.language.parsers.scanner import Scanner, Steps


class Plain(Scanner):
    """Everything is content."""

    def read(self) -> Steps[None]:
        """See `Scanner.read`."""
        yield from ()

    def push(self, text: str) -> list[Event]:
        """As `Scanner.push`, at once."""
        return [AnswerText(text)] if text else []
