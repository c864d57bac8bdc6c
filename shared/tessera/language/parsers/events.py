"""What readers of a model's text tell. Torch-free, and does not know OpenAI's shapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerText:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True)
class CallBegan:
    """A tool call: the answer's `index`th, from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """The next piece of a call's arguments, which are JSON together, unless the model broke it."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """No more arguments come."""

    index: int


Event = AnswerText | Thought | CallBegan | Arguments | CallEnded


def merge_events(events: list[Event]) -> list[Event]:
    """The same events with neighbours of one kind as one, and nothing empty."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, AnswerText | Thought | Arguments) and not event.text:
            continue
        if isinstance(event, AnswerText) and isinstance(last, AnswerText):
            found[-1] = AnswerText(last.text + event.text)
        elif isinstance(event, Thought) and isinstance(last, Thought):
            found[-1] = Thought(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and event.index == last.index:
            found[-1] = Arguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found
