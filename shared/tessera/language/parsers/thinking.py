"""Thoughts between two tags at the beginning of an answer; what follows is another reader's.

`<think>` further on is content: a text may talk about it. A template may have opened the thought in the prompt already.
"""

from __future__ import annotations

from tessera.language.parsers.events import AnswerText, Event, Thought, merge_events
from tessera.language.parsers.scanner import END, Scanner, Steps


class Thoughts(Scanner):
    """Splits thoughts from content."""

    def __init__(self, begin: str, end: str, *, opened: bool) -> None:
        self._begin = begin
        self._end = end
        self._opened = opened
        super().__init__()

    def read(self) -> Steps[None]:
        """See `Scanner.read`."""
        self.remember("")
        yield from self.space()
        if not (yield from self.accept(self._begin)) and not self._opened:
            self.give_back()
            return
        self._memory = None
        yield from self.space()
        marker, _ = yield from self.until((self._end,), lambda text: self.emit(Thought(text)), trim=True)
        if marker != END:
            yield from self.space()


class ThinkingFirst:
    """A reader of thoughts before a reader of the rest."""

    def __init__(self, thoughts: Thoughts, rest: Scanner) -> None:
        self._thoughts = thoughts
        self._rest = rest

    def push(self, text: str) -> list[Event]:
        """As `Scanner.push`."""
        return self._passed(self._thoughts.push(text))

    def finish(self) -> list[Event]:
        """As `Scanner.finish`."""
        return merge_events([*self._passed(self._thoughts.finish()), *self._rest.finish()])

    def _passed(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._rest.push(event.text) if isinstance(event, AnswerText) else [event]
        return merge_events(found)
