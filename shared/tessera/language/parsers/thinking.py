"""Parses reasoning between two tags at the beginning of an answer; another parser reads the rest.

`<think>` later in the answer is content, because a text may talk about it. A template may have opened the reasoning in
the prompt already.
"""

from __future__ import annotations

from tessera.language.parsers.events import AnswerText, Event, Thought, merge_events
from tessera.language.parsers.scanner import END, Scanner, Steps


class Thoughts(Scanner):
    """Separates reasoning from content.

    Args:
        begin: opens the reasoning.
        end: closes it.
        opened: whether the prompt has opened it.
    """

    def __init__(self, begin: str, end: str, *, opened: bool) -> None:
        self._begin = begin
        self._end = end
        self._opened = opened
        self.openings = (begin,)
        super().__init__()

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
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
    """A parser of reasoning, followed by a parser of the rest.

    Args:
        thoughts: parses the reasoning.
        rest: parses what the first parser emits as content.
    """

    def __init__(self, thoughts: Thoughts, rest: Scanner) -> None:
        self._thoughts = thoughts
        self._rest = rest

    def push(self, text: str) -> list[Event]:
        """Add text; returns the events that are certain after it."""
        return self._passed(self._thoughts.push(text))

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The events that were held back, when no more text comes; see `Scanner.finish`."""
        return merge_events([*self._passed(self._thoughts.finish(cut=cut)), *self._rest.finish(cut=cut)])

    def _passed(self, events: list[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            passed += self._rest.push(event.text) if isinstance(event, AnswerText) else [event]
        return merge_events(passed)
