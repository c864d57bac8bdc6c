"""Collects one choice of a chat answer: the events of its parser become deltas, and at the end the whole message."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from tessera.language.generation import Finish, TextDelta
from tessera.language.parsers.dialects import AnswerParser
from tessera.language.parsers.events import AnswerText, Arguments, CallBegan, Event, Thought
from tessera.wire.chat import AnswerMessage, Delta, FinishReason, TokenLogprob
from tessera.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta

_LETTERS = string.ascii_letters + string.digits


class ChatAnswer:
    """One choice of a chat answer, as far as it has come.

    Args:
        parser: splits the text into content, reasoning and tool calls.
        only_calls: whether a grammar forces calls. Then text beside them is what frames them, and no content.
        text_or_calls: whether a grammar allows either text or calls. Then text behind a call is what frames calls.

    Attributes:
        scores: log-probabilities of the tokens so far; filled by the caller.
        finish: why the choice ended; None while it has not.
        token_ids: all tokens so far, with the one that ended the choice.
        stop_reason: the stop string that ended it, as vLLM shows it; UNSET if something else did.
        thought_tokens: tokens of the reasoning so far, with the mark that opens it.
    """

    def __init__(self, parser: AnswerParser, *, only_calls: bool = False, text_or_calls: bool = False) -> None:
        self._parser = parser
        self._only_calls = only_calls
        self._text_or_calls = text_or_calls
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self.scores: list[TokenLogprob] = []
        self.finish: Finish | None = None
        self.token_ids: list[int] = []
        self.stop_reason: str | int | UnsetType = UNSET
        self.thought_tokens = 0
        self._uncounted = 0
        """Tokens whose text the parser holds back."""

    def take(self, piece: TextDelta) -> list[Delta]:
        """Add a piece of text; returns the deltas that are certain after it."""
        self.token_ids += piece.generated_ids
        events = self._parser.push(piece.text)
        if piece.finish_reason is not None:
            self.finish = piece.finish_reason
            self.stop_reason = UNSET if piece.stop_reason is None else piece.stop_reason
            events = [*events, *self._parser.finish(cut=piece.finish_reason == "length")]
        self._count(len(piece.token_ids), events)
        return [delta for event in events for delta in self._delta(event)]

    def _count(self, tokens: int, events: list[Event]) -> None:
        """Count the tokens of a piece that are thought, by the text that they gave. A piece of several tokens in which
        the thought ends is divided by its characters."""
        self._uncounted += tokens
        thought = sum(len(event.text) for event in events if isinstance(event, Thought))
        other = sum(len(event.text) for event in events if isinstance(event, AnswerText | Arguments))
        if thought or other:
            self.thought_tokens += round(self._uncounted * thought / (thought + other))
            self._uncounted = 0

    def message(self) -> AnswerMessage:
        """The whole message."""
        text = "".join(self._text)
        calls = [
            ToolCall(id=identity, type="function", function=CalledFunction(name=name, arguments="".join(arguments)))
            for identity, name, arguments in self._calls
        ]
        return AnswerMessage(
            content=None if calls and not text else text,
            reasoning_content="".join(self._thought) if self._thought else UNSET,
            tool_calls=calls or UNSET,
        )

    def reason(self) -> FinishReason:
        """Why the choice ended; `length` for an answer that was cut, even within a tool call."""
        if self.finish == "stop" and self._calls:
            return "tool_calls"
        return self.finish or "length"

    def _delta(self, event: Event) -> Iterator[Delta]:
        if isinstance(event, AnswerText):
            if self._only_calls or (self._text_or_calls and self._calls):
                return
            self._text.append(event.text)
            yield Delta(content=event.text)
        elif isinstance(event, Thought):
            self._thought.append(event.text)
            yield Delta(reasoning_content=event.text)
        elif isinstance(event, CallBegan):
            identity = _call_id()
            self._calls.append((identity, event.name, []))
            began = FunctionDelta(name=event.name, arguments="")
            yield Delta(tool_calls=[ToolCallDelta(index=event.index, id=identity, type="function", function=began)])
        elif isinstance(event, Arguments):
            self._calls[event.index][2].append(event.text)
            more = FunctionDelta(arguments=event.text)
            yield Delta(tool_calls=[ToolCallDelta(index=event.index, function=more)])


def _call_id() -> str:
    """A new id of nine letters and digits, the only form that Mistral's templates accept."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
