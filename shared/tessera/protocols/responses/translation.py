"""One response over chat completions: `ResponseTranslation` implements `tessera.protocols.translation.Translation`.

A whole answer goes through the same output as a stream, so both have the same items. Knows no HTTP and keeps nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from tessera.errors import BadGatewayError, InvalidRequestError, OverloadedError, TesseraError
from tessera.protocols.responses.output import (
    EventNumbers,
    ItemPlace,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenThought,
    item_prefix,
)
from tessera.protocols.responses.request import chat_request, refuse_unsupported
from tessera.protocols.responses.tools import OfferedTools
from tessera.protocols.responses.truncation import without_oldest
from tessera.web.sse import event
from tessera.wire.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Delta, TokenLogprob, Usage
from tessera.wire.responses import events as wire
from tessera.wire.responses.answer import (
    FailureCode,
    GeneratedResponse,
    GenerationFailure,
    GenerationStatus,
    GenerationUsage,
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ShownText,
)
from tessera.wire.responses.items import ItemStatus, OutputItem
from tessera.wire.responses.request import AnyTextFormat, ResponseRequest
from tessera.wire.tools import FunctionDelta, ToolCallDelta


class ResponseTranslation:
    """Translates one request of the Responses API.

    Args:
        body: the request, complete: whoever keeps responses has put the items before it into its input.

    Raises:
        InvalidRequestError: a part of the request cannot be honoured; names it.
    """

    def __init__(self, body: ResponseRequest) -> None:
        refuse_unsupported(body)
        self.body = body
        self._tools = OfferedTools(body.tools, body.tool_choice)
        self._chat = chat_request(body, self._tools)
        unique = uuid.uuid4().hex
        self.id = f"resp_{unique}"
        self._unique = unique
        self._created_at = int(time.time())
        self._model = body.model
        self._numbers = EventNumbers()
        self._done: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._call: int | None = None
        self._scores: list[TokenLogprob] = []
        self._reason: str | None = None
        self._usage: GenerationUsage | None = None
        reasoning, include = body.reasoning, body.include or []
        self._summarised = reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)
        self._sealed = "reasoning.encrypted_content" in include

    @property
    def chat(self) -> ChatCompletionRequest:
        """Implement `Translation.chat`."""
        return self._chat

    def shorten(self) -> bool:
        """Leave the oldest turn out of the conversation, if the request allows it (`truncation: auto`) and there is one
        to leave out. Returns whether the chat request is another one now."""
        shorter = without_oldest(self._chat) if self.body.truncation == "auto" else None
        self._chat = shorter or self._chat
        return shorter is not None

    def answer(self, completion: ChatCompletion) -> GeneratedResponse:
        """Implement `Translation.answer`."""
        self._model = completion.model
        choice = completion.choices[0]
        message = choice.message
        scores = choice.logprobs.content if choice.logprobs else []
        if isinstance(message.reasoning_content, str):
            _exhaust(self._thought(message.reasoning_content))
        if message.content:
            _exhaust(self._text(message.content, scores))
        for place, call in enumerate([] if message.tool_calls is UNSET else message.tool_calls):
            function = FunctionDelta(name=call.function.name, arguments=call.function.arguments)
            _exhaust(self._called(ToolCallDelta(index=place, id=call.id, function=function)))
        self._reason = choice.finish_reason
        self._usage = _usage(completion.usage)
        _exhaust(self._last())
        return self.shown(self._ending())

    def begin(self) -> list[bytes]:
        """Implement `Translation.begin`."""
        shown = self.shown("in_progress")
        return [
            _encoded(wire.GenerationCreated(sequence_number=self._numbers.take(), response=shown)),
            _encoded(wire.GenerationInProgress(sequence_number=self._numbers.take(), response=shown)),
        ]

    def chunk(self, chunk: ChatCompletionChunk) -> list[bytes]:
        """Implement `Translation.chunk`."""
        self._model = chunk.model
        if isinstance(chunk.usage, Usage):
            self._usage = _usage(chunk.usage)
        found: list[bytes] = []
        for choice in chunk.choices:
            scores = choice.logprobs.content if choice.logprobs else []
            found += map(_encoded, self._delta(choice.delta, scores))
            self._reason = choice.finish_reason or self._reason
        return found

    def end(self) -> list[bytes]:
        """Implement `Translation.end`."""
        found = [_encoded(each) for each in self._last()]
        status = self._ending()
        kind = wire.GenerationCompleted if status == "completed" else wire.GenerationIncomplete
        return [*found, _encoded(kind(sequence_number=self._numbers.take(), response=self.shown(status)))]

    def failed(self, error: TesseraError) -> list[bytes]:
        """Implement `Translation.failed`."""
        found = [_encoded(each) for each in self._close("incomplete")]
        response = msgspec.structs.replace(
            self.shown("failed"), error=GenerationFailure(code=failure_code(error), message=error.message)
        )
        return [*found, _encoded(wire.GenerationFailed(sequence_number=self._numbers.take(), response=response))]

    def _delta(self, delta: Delta, scores: list[TokenLogprob]) -> Iterator[wire.GenerationEvent]:
        if delta.reasoning_content:
            yield from self._thought(delta.reasoning_content)
        if delta.content:
            yield from self._text(delta.content, scores)
        else:
            # Scores of tokens whose text is still held back belong to the text that follows.
            self._scores += scores
        for call in [] if delta.tool_calls is UNSET else delta.tool_calls:
            yield from self._called(call)

    def _thought(self, text: str) -> Iterator[wire.GenerationEvent]:
        self._scores = []
        if not isinstance(self._open, OpenThought):
            yield from self._close("completed")
            self._open = OpenThought(self._place("rs"), seal=self._sealed, summarised=self._summarised)
            yield from self._open.begin()
        assert isinstance(self._open, OpenThought)
        yield from self._open.add(text)

    def _text(self, text: str, scores: list[TokenLogprob]) -> Iterator[wire.GenerationEvent]:
        if not isinstance(self._open, OpenMessage):
            yield from self._close("completed")
            self._open = OpenMessage(self._place("msg"))
            yield from self._open.begin()
        assert isinstance(self._open, OpenMessage)
        yield from self._open.add(text, [*self._scores, *scores])
        self._scores = []

    def _called(self, call: ToolCallDelta) -> Iterator[wire.GenerationEvent]:
        self._scores = []
        if self._call != call.index:
            yield from self._close("completed")
            if call.id is UNSET or call.function.name is UNSET:
                raise BadGatewayError("the model's server sent a piece of a call that is not the current one")
            tool = self._tools.called(call.function.name)
            self._call = call.index
            self._open = OpenCall(self._place(item_prefix(tool)), call.id, tool)
            yield from self._open.begin()
        assert isinstance(self._open, OpenCall)
        if call.function.arguments:
            yield from self._open.add(call.function.arguments)

    def _last(self) -> Iterator[wire.GenerationEvent]:
        """The events that end the output; an answer without anything is a message without text."""
        if not self._done and self._open is None:
            self._open = OpenMessage(self._place("msg"))
            yield from self._open.begin()
        yield from self._close("completed" if self._ending() == "completed" else "incomplete")

    def _close(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        if self._open is not None:
            item, self._open, self._call = self._open, None, None
            self._done.append(item.item(status))
            yield from item.end(status)

    def _place(self, prefix: str) -> ItemPlace:
        """The place of the next item, whose id begins with `prefix`."""
        return ItemPlace(self._numbers, len(self._done), f"{prefix}_{self._unique}{len(self._done):04x}")

    def _ending(self) -> GenerationStatus:
        return "incomplete" if self._reason in {"length", "content_filter"} else "completed"

    def shown(self, status: GenerationStatus) -> GeneratedResponse:
        """The response object as it is now."""
        body = self.body
        filtered = self._reason == "content_filter"
        text = body.text
        return GeneratedResponse(
            id=self.id,
            created_at=self._created_at,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details=IncompleteDetails(reason="content_filter" if filtered else "max_output_tokens")
            if status == "incomplete"
            else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=self._model,
            output=list(self._done),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=body.reasoning,
            safety_identifier=body.safety_identifier,
            temperature=body.temperature,
            text=ShownText(
                format=(text.format if text else None) or AnyTextFormat(), verbosity=text.verbosity if text else None
            ),
            tool_choice=body.tool_choice or "auto",
            tools=self._tools.shown,
            top_logprobs=body.top_logprobs or 0,
            top_p=body.top_p,
            truncation=body.truncation or "disabled",
            usage=self._usage,
            user=UNSET if body.user is None else body.user,
            metadata=body.metadata or {},
        )


def failure_code(error: TesseraError) -> FailureCode:
    """The code of an error in a response that failed, of those that OpenAI has."""
    if isinstance(error, OverloadedError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequestError) else "server_error"


def _usage(used: Usage) -> GenerationUsage:
    details, answered = used.prompt_tokens_details, used.completion_tokens_details
    return GenerationUsage(
        input_tokens=used.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=details.cached_tokens if details else 0),
        output_tokens=used.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=answered.reasoning_tokens if answered else 0),
        total_tokens=used.total_tokens,
    )


def _encoded(happened: wire.GenerationEvent) -> bytes:
    return event(happened, str(type(happened).__struct_config__.tag))


def _exhaust(events: Iterator[wire.GenerationEvent]) -> None:
    for _ in events:
        pass
