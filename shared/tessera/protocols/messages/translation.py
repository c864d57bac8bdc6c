"""One request of Anthropic's messages: its chat request, and chat's answer as a message or as its events.

Thoughts are signed with a fixed word that nobody checks: a client may change its history as it likes, so a signature
could prove nothing here. Knows no engine and no HTTP.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tessera.errors import BadGatewayError, TesseraError
from tessera.protocols.messages.errors import error_event
from tessera.protocols.messages.request import chat_request
from tessera.web.sse import event
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Usage
from tessera.wire.message_answers import (
    AppliedEdits,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageAnswer,
    MessageDelta,
    MessageEnding,
    MessageEvent,
    MessagePing,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputBlock,
    SignatureDelta,
    StopReason,
    TextBlockDelta,
    TextOutput,
    ThinkingDelta,
    ThinkingOutput,
    ToolUseOutput,
)
from tessera.wire.messages import MessagesRequest, ThinkingAdaptive, ThinkingEnabled
from tessera.wire.tools import ToolCallDelta

SIGNATURE = "tessera-unsigned"
"""The signature of every thought."""
_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessageTranslation:
    """The translation of one request; implements `tessera.protocols.translation.Translation`.

    Args:
        request: as it was decoded.

    Raises:
        InvalidRequestError: the request asks for what cannot be done here.
    """

    def __init__(self, request: MessagesRequest) -> None:
        self._chat = chat_request(request)
        self._model = request.model
        self._identity = f"msg_{uuid.uuid4().hex}"
        thinking = request.thinking
        self._hides_thoughts = (
            isinstance(thinking, ThinkingEnabled | ThinkingAdaptive) and thinking.display == "omitted"
        )
        self._edits: AppliedEdits | UnsetType = AppliedEdits() if request.context_management else UNSET
        self._started = False
        self._open: OutputBlock | None = None
        self._index = -1
        self._call = -1
        self._reason: str | None = None
        self._stopped_by: str | None = None
        self._usage: Usage | None = None

    @property
    def chat(self) -> ChatCompletionRequest:
        """The request in chat completions' terms. A streamed one asks for its usage."""
        return self._chat

    def answer(self, completion: ChatCompletion) -> MessageAnswer:
        """The whole message."""
        choice = completion.choices[0]
        message = choice.message
        blocks: list[OutputBlock] = []
        if message.reasoning_content:
            blocks.append(ThinkingOutput("" if self._hides_thoughts else message.reasoning_content, SIGNATURE))
        if message.content:
            blocks.append(TextOutput(message.content))
        for call in message.tool_calls or []:
            given = _input(call.function.arguments)
            if given is None and choice.finish_reason == "length":
                continue  # the call was cut and cannot be made
            arguments = {"invalid_arguments": call.function.arguments} if given is None else given
            blocks.append(ToolUseOutput(call.id or _call_id(), call.function.name, arguments))
        stopped_by = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return MessageAnswer(
            id=self._identity,
            model=completion.model,
            content=blocks,
            stop_reason=_stop_reason(choice.finish_reason, stopped_by),
            stop_sequence=stopped_by,
            usage=_usage(completion.usage),
            context_management=self._edits,
        )

    def begin(self) -> list[bytes]:
        """Nothing: the first event has the numbers of the first chunk."""
        return []

    def chunk(self, chunk: ChatCompletionChunk) -> list[bytes]:
        """The events of a chunk.

        Raises:
            BadGatewayError: an upstream goes on with a call after it has begun the next one.
        """
        if isinstance(chunk.usage, Usage):
            self._usage = chunk.usage
        self._model = chunk.model
        events = self._start()
        for choice in chunk.choices:
            if choice.index != 0:
                continue
            delta = choice.delta
            if delta.reasoning_content:
                events += self._in(ThinkingOutput("", ""))
                if not self._hides_thoughts:
                    events.append(self._delta(ThinkingDelta(delta.reasoning_content)))
            if delta.content:
                events += self._in(TextOutput(""))
                events.append(self._delta(TextBlockDelta(delta.content)))
            for call in delta.tool_calls or []:
                events += self._call_delta(call)
            if choice.finish_reason is not None:
                self._reason = choice.finish_reason
                self._stopped_by = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return events

    def end(self) -> list[bytes]:
        """The end of the message.

        Raises:
            BadGatewayError: the answer has no end.
        """
        if self._reason is None:
            raise BadGatewayError("the answer ended before it was complete; try again")
        ending = MessageDelta(
            delta=MessageEnding(
                stop_reason=_stop_reason(self._reason, self._stopped_by), stop_sequence=self._stopped_by
            ),
            usage=_usage(self._usage),
            context_management=self._edits,
        )
        return [*self._start(), *self._close(), _event(ending), _event(MessageStop())]

    def failed(self, error: TesseraError) -> list[bytes]:
        """The error event."""
        return [error_event(error)]

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        message = MessageAnswer(
            id=self._identity,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=_usage(self._usage),
        )
        return [_event(MessageStart(message)), _event(MessagePing())]

    def _in(self, block: OutputBlock) -> list[bytes]:
        """Go on in a block of this type, which is begun unless it is open."""
        if type(self._open) is type(block) and not isinstance(block, ToolUseOutput):
            return []
        closed = self._close()
        self._open = block
        self._index += 1
        return [*closed, _event(ContentBlockStart(self._index, block))]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        signed = [self._delta(SignatureDelta(SIGNATURE))] if isinstance(self._open, ThinkingOutput) else []
        self._open = None
        return [*signed, _event(ContentBlockStop(self._index))]

    def _call_delta(self, call: ToolCallDelta) -> list[bytes]:
        events: list[bytes] = []
        if call.index > self._call:
            self._call = call.index
            name = call.function.name or ""
            events += self._in(ToolUseOutput(call.id or _call_id(), name, {}))
        elif call.index < self._call or not isinstance(self._open, ToolUseOutput):
            raise BadGatewayError("the upstream went on with a tool call that had ended")
        if call.function.arguments:
            events.append(self._delta(InputJsonDelta(call.function.arguments)))
        return events

    def _delta(self, delta: TextBlockDelta | InputJsonDelta | ThinkingDelta | SignatureDelta) -> bytes:
        return _event(ContentBlockDelta(self._index, delta))


def _event(value: MessageEvent) -> bytes:
    tag = type(value).__struct_config__.tag
    assert isinstance(tag, str)
    return event(value, tag)


def _stop_reason(reason: str, stopped_by: str | None) -> StopReason:
    return "stop_sequence" if stopped_by is not None else _REASONS.get(reason, "end_turn")


def _usage(used: Usage | None) -> MessageUsage:
    """The numbers of tokens; zeros while they are not known."""
    if used is None:
        return MessageUsage(input_tokens=0, output_tokens=0)
    details = used.prompt_tokens_details
    cached = min(details.cached_tokens, used.prompt_tokens) if details else 0
    return MessageUsage(
        input_tokens=used.prompt_tokens - cached,
        output_tokens=used.completion_tokens,
        cache_read_input_tokens=cached,
    )


def _input(arguments: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None if they are none."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _call_id() -> str:
    return f"toolu_{uuid.uuid4().hex}"
