"""Reads a growing text one character at a time, in a plain procedure that waits in `take` for the next character.

A parser implements `read` as a generator. Because it sees single characters, its events cannot depend on how the text
was cut. It calls `remember` before text that it may have to give back, such as a beginning that may be no tool call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from tessera.language.parsers.events import AnswerText, Arguments, CallBegan, CallEnded, Event, merge_events

T = TypeVar("T")
Steps = Generator[None, str, T]
Sink = Callable[[str], None]

END = ""
"""Result of `take` when no more text comes."""


class Scanner:
    """Base of all parsers.

    Attributes:
        openings: What opens a part that is no content. Where an answer is cut within such a part, or within its
            opening, what was read of it is dropped: it is no content.
    """

    openings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ahead: list[str] = []
        self._over = False
        self._cut = False
        self._framed = False
        self._memory: list[str] | None = None
        self._calls = 0
        self._steps = self._run()
        next(self._steps)

    def push(self, text: str) -> list[Event]:
        """Add text; returns the events that are certain after it."""
        for character in text:
            self._steps.send(character)
        return self._flush_events()

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The events that were held back, when no more text comes. Called once.

        Args:
            cut: whether the model would have gone on, so that a part of a marker at the end is one.
        """
        self._cut = cut
        try:
            self._steps.send(END)
        except StopIteration:
            return self._flush_events()
        raise AssertionError("a parser goes on after the end")

    def read(self) -> Steps[None]:
        """Read the text; what is left when it returns is content."""
        raise NotImplementedError

    def emit(self, event: Event) -> None:
        """Emit an event."""
        self._events.append(event)

    def content(self, text: str) -> None:
        """Emit content."""
        self._events.append(AnswerText(text))

    def begin_call(self, name: str) -> int:
        """Emit the beginning of a call, and forget what was remembered. Returns the call's index."""
        index = self._calls
        self._calls += 1
        self._memory = None
        self.emit(CallBegan(index, name))
        return index

    def argument_sink(self, index: int) -> Sink:
        """A function that emits the pieces of a call's arguments."""
        return lambda text: self.emit(Arguments(index, text))

    def end_call(self, index: int) -> None:
        """Emit the end of a call."""
        self.emit(CallEnded(index))

    def remember(self, text: str, *, framed: bool = False) -> None:
        """Remember what is read from now on, beginning with `text`, so that `give_back` can emit it as content.

        `framed` says that it would be a separator of calls, which is no content where the end of the answer cuts it.
        """
        self._memory = list(text)
        self._framed = framed

    def give_back(self) -> None:
        """Emit what was remembered as content, unless it is a part that the end of the answer has cut."""
        text = "".join(self._memory or ())
        ahead = "".join(reversed(self._ahead))
        if self.is_cut and (self._framed or self._is_opened((text + ahead).lstrip())):
            self._ahead.clear()
        else:
            self.content(text)
        self._memory = None

    @property
    def is_cut(self) -> bool:
        """Whether the text is over although the model would have gone on."""
        return self._over and self._cut

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
        """Return the characters that were taken last, to be taken again."""
        self._ahead.extend(reversed(text))
        if self._memory is not None and text:
            del self._memory[len(self._memory) - len(text) :]

    def peek(self) -> Steps[str]:
        """The next character, without taking it."""
        character = yield from self.take()
        self.unread(character)
        return character

    def space(self) -> Steps[str]:
        """Take whitespace and return it."""
        taken: list[str] = []
        while (character := (yield from self.take())).isspace():
            taken.append(character)
        self.unread(character)
        return "".join(taken)

    def accept(self, literal: str) -> Steps[bool]:
        """Take `literal` if the text goes on with it, else nothing. Returns whether it was taken."""
        taken = ""
        for expected in literal:
            character = yield from self.take()
            if character != expected:
                self.unread(taken + character)
                return False
            taken += character
        return True

    def close(self, literal: str) -> Steps[bool]:
        """Take the end of a call, or its beginning when the text ends within it; else nothing. Returns whether it
        did."""
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
            markers: none of them is a prefix of another.
            sink: gets the text as soon as it can no longer be part of a marker.
            trim: whether whitespace before a marker is left out.

        Returns:
            The marker, or `END` when none came; and the whitespace that was left out.
        """
        space, held = "", ""
        while True:
            character = yield from self.take()
            if character == END:
                # Whitespace behind a call, like that before a marker, is none of the model's words.
                if not (self.is_cut and held):
                    sink(held if trim and self._calls and not held else space + held)
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

    def _is_opened(self, text: str) -> bool:
        return bool(text) and any(text.startswith(one) or one.startswith(text) for one in self.openings)

    def _run(self) -> Steps[None]:
        yield from self.read()
        while (character := (yield from self.take())) != END:
            self.content(character)

    def _flush_events(self) -> list[Event]:
        events, self._events = merge_events(self._events), []
        return events
