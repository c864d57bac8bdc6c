"""Reading a growing text one character at a time, as a plain procedure that waits in `take` for the next one.

A reader writes `read` as a generator. Because it sees single characters, its events cannot depend on how the text was
cut. What it may have to give back (a beginning that turns out to be no tool call) it reads under `remember`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from tessera.language.parsers.events import AnswerText, Arguments, CallBegan, CallEnded, Event, merge_events

T = TypeVar("T")
Steps = Generator[None, str, T]
Sink = Callable[[str], None]

END = ""
"""What `take` gives when no more text comes."""


class Scanner:
    """Base of all readers."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ahead: list[str] = []
        self._over = False
        self._memory: list[str] | None = None
        self._calls = 0
        self._steps = self._run()
        next(self._steps)

    def push(self, text: str) -> list[Event]:
        """What is certain after `text` has come."""
        for character in text:
            self._steps.send(character)
        return self._told()

    def finish(self) -> list[Event]:
        """What was held back, when no more text comes. Called once."""
        try:
            self._steps.send(END)
        except StopIteration:
            return self._told()
        raise AssertionError("a reader goes on after the end")

    def read(self) -> Steps[None]:
        """Read the text; what is left when it returns is content."""
        raise NotImplementedError

    def emit(self, event: Event) -> None:
        """Tell an event."""
        self._events.append(event)

    def content(self, text: str) -> None:
        """Tell content."""
        self._events.append(AnswerText(text))

    def begin_call(self, name: str) -> int:
        """Tell that a call has begun, after which nothing of it is given back as content. Returns its index."""
        index = self._calls
        self._calls += 1
        self._memory = None
        self.emit(CallBegan(index, name))
        return index

    def argument_sink(self, index: int) -> Sink:
        """What takes the pieces of a call's arguments."""
        return lambda text: self.emit(Arguments(index, text))

    def end_call(self, index: int) -> None:
        """Tell that a call has ended."""
        self.emit(CallEnded(index))

    def remember(self, text: str) -> None:
        """From now on keep what is read, beginning with `text`, so that `give_back` can tell it as content."""
        self._memory = list(text)

    def give_back(self) -> None:
        """What was remembered is content after all."""
        if self._memory is not None:
            self.content("".join(self._memory))
        self._memory = None

    def take(self) -> Steps[str]:
        """The next character, or `END`."""
        if self._ahead:
            character = self._ahead.pop()
        elif self._over:
            return END
        else:
            character = yield
            if character == END:
                self._over = True
                return END
        if self._memory is not None:
            self._memory.append(character)
        return character

    def unread(self, text: str) -> None:
        """Give characters back, the last ones that were taken."""
        self._ahead.extend(reversed(text))
        if self._memory is not None and text:
            del self._memory[len(self._memory) - len(text) :]

    def peek(self) -> Steps[str]:
        """The next character, without taking it."""
        character = yield from self.take()
        self.unread(character)
        return character

    def space(self) -> Steps[str]:
        """Take whitespace."""
        taken: list[str] = []
        while (character := (yield from self.take())).isspace():
            taken.append(character)
        self.unread(character)
        return "".join(taken)

    def accept(self, literal: str) -> Steps[bool]:
        """Take `literal`, or nothing at all."""
        taken = ""
        for expected in literal:
            character = yield from self.take()
            if character != expected:
                self.unread(taken + character)
                return False
            taken += character
        return True

    def close(self, literal: str) -> Steps[bool]:
        """Take what ends a call, or what there is of it where the text ends within it; or nothing at all."""
        taken = ""
        for expected in literal:
            character = yield from self.take()
            if character == END:
                return True
            taken += character
            if character != expected:
                self.unread(taken)
                return False
        return True

    def until(self, markers: tuple[str, ...], sink: Sink, *, trim: bool) -> Steps[tuple[str, str]]:
        """Pass text on up to the first of `markers`.

        Args:
            markers: none of them begins another.
            sink: takes the text as soon as it can be no part of a marker.
            trim: whether whitespace before a marker is left out.

        Returns:
            The marker (`END` when none came) and the whitespace that was left out.
        """
        space, held = "", ""
        while True:
            character = yield from self.take()
            if character == END:
                sink(space + held)
                return END, ""
            held += character
            if held in markers:
                return held, space
            cut = 0
            while not any(marker.startswith(held[cut:]) for marker in markers):
                cut += 1
            if not cut:
                continue
            text, held = space + held[:cut], held[cut:]
            shown = text.rstrip() if trim else text
            space = text[len(shown) :]
            sink(shown)

    def _run(self) -> Steps[None]:
        yield from self.read()
        while (character := (yield from self.take())) != END:
            self.content(character)

    def _told(self) -> list[Event]:
        told, self._events = merge_events(self._events), []
        return told
