"""The events that parsers of a model's text emit. Does not know OpenAI's shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerText:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class CallBegan:
    """A tool call begins.

    Attributes:
        index: of the call in the answer, from 0.
        name: of the tool.
    """

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next piece of a call's arguments. All pieces together are JSON, unless the model wrote something else.

    Attributes:
        index: of the call.
        text: the piece.
    """

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """A tool call ends.

    Attributes:
        index: of the call.
    """

    index: int


Event = AnswerText | Thought | CallBegan | Arguments | CallEnded


def merge_events(events: list[Event]) -> list[Event]:
    """The same events, with neighbours of the same kind merged and empty ones left out."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, AnswerText | Thought | Arguments) and not event.text:
            continue
        if isinstance(event, AnswerText) and isinstance(last, AnswerText):
            merged[-1] = AnswerText(last.text + event.text)
        elif isinstance(event, Thought) and isinstance(last, Thought):
            merged[-1] = Thought(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and event.index == last.index:
            merged[-1] = Arguments(event.index, last.text + event.text)
        else:
            merged.append(event)
    return merged
