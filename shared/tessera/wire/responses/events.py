"""The events of a streamed response, each with its number in the stream."""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.wire.responses.answer import GeneratedResponse
from tessera.wire.responses.items import OutputItem, OutputTextPart, SummaryText, ThoughtText


class GenerationEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    sequence_number: int


class ResponseEvent(GenerationEvent, frozen=True, kw_only=True):
    """The whole response has another status."""

    response: GeneratedResponse


class GenerationCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response exists."""


class GenerationQueued(ResponseEvent, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits for a worker."""


class GenerationInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model works."""


class GenerationCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The response is complete."""


class GenerationIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response ended before its end."""


class GenerationFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The response failed."""


class OutputEvent(GenerationEvent, frozen=True, kw_only=True):
    """Base of the events of one item."""

    output_index: int


class ItemEvent(OutputEvent, frozen=True, kw_only=True):
    """Something happened within an item."""

    item_id: str


class ContentEvent(ItemEvent, frozen=True, kw_only=True):
    """Something happened to a part of an item's content."""

    content_index: int


class SummaryEvent(ItemEvent, frozen=True, kw_only=True):
    """Something happened to a part of a thought's summary."""

    summary_index: int


class OutputItemAdded(OutputEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class OutputItemDone(OutputEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    item: OutputItem


class ContentPartAdded(ContentEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of an item's content begins."""

    part: OutputTextPart | ThoughtText


class ContentPartDone(ContentEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part of an item's content is complete."""

    part: OutputTextPart | ThoughtText


class OutputTextDelta(ContentEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A piece of a message's text."""

    delta: str
    logprobs: list[Any] = []


class OutputTextDone(ContentEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text of a message."""

    text: str
    logprobs: list[Any] = []


class ReasoningTextDelta(ContentEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A piece of a thought."""

    delta: str


class ReasoningTextDone(ContentEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """A thought."""

    text: str


class SummaryPartAdded(SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of a thought's summary begins."""

    part: SummaryText


class SummaryPartDone(SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of a thought's summary is complete."""

    part: SummaryText


class SummaryTextDelta(SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """A piece of a thought's summary."""

    delta: str


class SummaryTextDone(SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"):
    """A thought's summary."""

    text: str


class CallArgumentsDelta(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments."""

    delta: str


class CallArgumentsDone(ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a call."""

    name: str
    arguments: str


class CustomInputDelta(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """A piece of the text of a custom tool's call."""

    delta: str


class CustomInputDone(ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The text of a custom tool's call."""

    input: str


class GenerationErrorEvent(GenerationEvent, frozen=True, kw_only=True, tag="error"):
    """The stream ends because of an error."""

    code: str | None
    message: str
    param: str | None = None


StreamedEvent = (
    GenerationCreated
    | GenerationQueued
    | GenerationInProgress
    | GenerationCompleted
    | GenerationIncomplete
    | GenerationFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryTextDelta
    | SummaryTextDone
    | CallArgumentsDelta
    | CallArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | GenerationErrorEvent
)
