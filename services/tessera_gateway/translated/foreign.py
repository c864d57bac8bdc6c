"""Chat answers of servers of any make, as our own types: unknown keys, missing usage, other finish reasons, refusals,
calls in the form before 2023, thoughts by either name. What cannot be understood is the upstream's fault and said so.
Knows no protocol and reads no bytes from anywhere.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tessera.errors import BadGatewayError
from tessera.wire.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChoiceLogprobs,
    CompletionTokensDetails,
    Delta,
    FinishReason,
    PromptTokensDetails,
    Usage,
)
from tessera.wire.decoding import DAMAGED
from tessera.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta

_REASONS: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
}
"""Our finish reasons for those of others; any other word is an ordinary end."""
_REASON_KEYS = ("message", "error", "detail", "msg")
"""Keys under which servers say what is wrong."""
_GIVEN_UP = frozenset({"abort", "error", "cancelled"})
"""Finish reasons of an answer that its server gave up."""


class ForeignFunction(msgspec.Struct, frozen=True):
    """The function of a call."""

    name: str | None = None
    arguments: Any = None


class ForeignCall(msgspec.Struct, frozen=True):
    """A call, or what a chunk adds to it."""

    index: int | None = None
    id: str | None = None
    function: ForeignFunction | None = None


class ForeignMessage(msgspec.Struct, frozen=True):
    """A message, or what a chunk adds to it."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[ForeignCall] | None = None
    function_call: ForeignFunction | None = None


class ForeignChoice(msgspec.Struct, frozen=True):
    """An answer, or its part of a chunk; `text` is that of a completion."""

    index: int | None = None
    message: ForeignMessage | None = None
    delta: ForeignMessage | None = None
    text: str | None = None
    finish_reason: Any = None
    stop_reason: Any = None
    logprobs: Any = None


class ForeignDetails(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens, or of the answer's."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ForeignUsage(msgspec.Struct, frozen=True):
    """Numbers of tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: ForeignDetails | None = None
    completion_tokens_details: ForeignDetails | None = None


class ForeignAnswer(msgspec.Struct, frozen=True):
    """An answer or a chunk."""

    id: Any = None
    created: Any = None
    model: Any = None
    choices: list[ForeignChoice] | None = None
    usage: ForeignUsage | None = None
    error: Any = None


class ForeignReader:
    """Reads the answer to one request, whole or chunk by chunk."""

    def __init__(self, upstream: str, model: str) -> None:
        self._upstream = upstream
        self._model = model
        self._called = False
        self._refused = False
        self._legacy: str | None = None

    def completion(self, data: bytes) -> ChatCompletion:
        """The whole answer.

        Raises:
            BadGatewayError: it is none, has no choice, or was given up.
        """
        answer = self._decoded(data)
        if not answer.choices:
            raise BadGatewayError(f"the upstream {self._upstream} answered without a choice")
        choice = answer.choices[0]
        delta = self._delta(choice)
        calls = [
            ToolCall(
                id=call.id or _identity(),
                type="function",
                function=CalledFunction(name=call.function.name or "", arguments=call.function.arguments or "{}"),
            )
            for call in delta.tool_calls or []
        ]
        message = AnswerMessage(
            content=delta.content or None if calls else delta.content or "",
            reasoning_content=delta.reasoning_content,
            tool_calls=calls or UNSET,
        )
        shown = ChatChoice(
            index=0,
            message=message,
            logprobs=_logprobs(choice.logprobs),
            finish_reason=self._reason(choice.finish_reason) or "stop",
            stop_reason=_stopped_by(choice),
        )
        identity, created = _str(answer.id), _int(answer.created)
        used = _usage(answer.usage) or Usage(prompt_tokens=0, total_tokens=0)
        return ChatCompletion(id=identity, created=created, model=self._model, choices=[shown], usage=used)

    def chunk(self, data: bytes) -> ChatCompletionChunk | None:
        """One event's data; None for what says nothing.

        Raises:
            BadGatewayError: it is no chunk, or says that the upstream failed.
        """
        if data.strip() == b"[DONE]":
            return None
        answer = self._decoded(data)
        choices = []
        for choice in answer.choices or []:
            if choice.index not in (None, 0):
                continue
            delta = self._delta(choice)
            reason = self._reason(choice.finish_reason)
            logprobs = _logprobs(choice.logprobs)
            choices.append(
                ChatChunkChoice(
                    index=0, delta=delta, finish_reason=reason, stop_reason=_stopped_by(choice), logprobs=logprobs
                )
            )
        used = _usage(answer.usage)
        if not choices and used is None:
            return None
        return ChatCompletionChunk(
            id=_str(answer.id),
            created=_int(answer.created),
            model=self._model,
            choices=choices,
            usage=UNSET if used is None else used,
        )

    def _decoded(self, data: bytes) -> ForeignAnswer:
        try:
            answer = msgspec.json.decode(data, type=ForeignAnswer)
        except (msgspec.ValidationError, *DAMAGED) as error:
            raise BadGatewayError(
                f"the upstream {self._upstream} answered with what is no chat completion: {error}"
            ) from error
        if answer.error:
            raise BadGatewayError(f"the upstream {self._upstream} failed: {error_text(answer.error)}")
        return answer

    def _delta(self, choice: ForeignChoice) -> Delta:
        message = choice.delta or choice.message or ForeignMessage(content=choice.text)
        self._refused = self._refused or bool(message.refusal)
        thought = message.reasoning_content if message.reasoning_content is not None else message.reasoning
        calls = [self._call(call, place) for place, call in enumerate(message.tool_calls or [])]
        if message.function_call is not None:
            self._legacy, known = self._legacy or _identity(), self._legacy
            calls.append(self._call(ForeignCall(0, None if known else self._legacy, message.function_call), 0))
        self._called = self._called or bool(calls)
        text = _text(message.content) + (message.refusal or "")
        return Delta(
            content=text or UNSET,
            reasoning_content=thought if isinstance(thought, str) and thought else UNSET,
            tool_calls=calls or UNSET,
        )

    def _call(self, call: ForeignCall, place: int) -> ToolCallDelta:
        function = call.function or ForeignFunction()
        given = function.arguments
        arguments = given if isinstance(given, str | None) else msgspec.json.encode(given).decode()
        return ToolCallDelta(
            index=place if call.index is None else call.index,
            id=call.id or UNSET,
            type="function",
            function=FunctionDelta(name=function.name or UNSET, arguments=arguments or UNSET),
        )

    def _reason(self, reason: Any) -> FinishReason | None:
        if reason is None or reason == "":
            return None
        if reason in _GIVEN_UP:
            raise BadGatewayError(f"the upstream {self._upstream} gave the answer up; try again")
        known = _REASONS.get(str(reason), "stop")
        if known == "stop":
            return "tool_calls" if self._called else "content_filter" if self._refused else "stop"
        return known


def error_text(error: Any) -> str:
    """What an error of another server says, in any of the forms that are common; short."""
    for _ in range(3):
        if not isinstance(error, dict):
            break
        error = next(
            (error[key] for key in ("message", "error", "detail", "msg") if error.get(key)), "without a reason"
        )
    text = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return text[:1000]


def as_chunk(completion: ChatCompletion) -> ChatCompletionChunk:
    """A whole answer as the only chunk of a stream: for upstreams that do not stream."""
    choice = completion.choices[0]
    calls = [
        ToolCallDelta(
            index=place,
            id=call.id,
            type="function",
            function=FunctionDelta(name=call.function.name, arguments=call.function.arguments),
        )
        for place, call in enumerate(choice.message.tool_calls or [])
    ]
    delta = Delta(
        content=choice.message.content or UNSET,
        reasoning_content=choice.message.reasoning_content,
        tool_calls=calls or UNSET,
    )
    only = ChatChunkChoice(index=0, delta=delta, finish_reason=choice.finish_reason, stop_reason=choice.stop_reason)
    return ChatCompletionChunk(
        id=completion.id, created=completion.created, model=completion.model, choices=[only], usage=completion.usage
    )


def _text(content: Any) -> str:
    """The text of a content: a text, or a list of parts of which some are text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _stopped_by(choice: ForeignChoice) -> str | int | UnsetType:
    """The stop string, where the upstream says it as vLLM (`stop_reason`) does."""
    return choice.stop_reason if isinstance(choice.stop_reason, str | int) else UNSET


def _logprobs(value: Any) -> ChoiceLogprobs | None:
    if not isinstance(value, dict) or not value.get("content"):
        return None
    try:
        return msgspec.convert(value, ChoiceLogprobs)
    except msgspec.ValidationError:
        return None


def _usage(used: ForeignUsage | None) -> Usage | None:
    if used is None:
        return None
    prompt, answer = used.prompt_tokens or 0, used.completion_tokens or 0
    cached = used.prompt_tokens_details.cached_tokens if used.prompt_tokens_details else None
    reasoned = used.completion_tokens_details.reasoning_tokens if used.completion_tokens_details else None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=answer,
        total_tokens=prompt + answer,
        prompt_tokens_details=UNSET if cached is None else PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=UNSET if reasoned is None else CompletionTokensDetails(reasoning_tokens=reasoned),
    )


def _str(value: Any) -> str:
    return value if isinstance(value, str) else _identity()


def _int(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _identity() -> str:
    return uuid.uuid4().hex
