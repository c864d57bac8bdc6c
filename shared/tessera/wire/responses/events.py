"""The events of a streamed response, each with its number in the stream."""

from __future__ import annotations

from typing import Any

import msgspec

from tessera.wire.responses.answer import GeneratedResponse
from tessera.wire.responses.items import OutputItem, OutputTextPart, SummaryText, ThoughtText


class GenerationEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events."""

    sequence_number: int


class GenerationCreated(GenerationEvent, frozen=True, kw_only=True, tag="response.created"):
    """The response exists."""

    response: GeneratedResponse


class GenerationQueued(GenerationEvent, frozen=True, kw_only=True, tag="response.queued"):
    """The response waits for a worker."""

    response: GeneratedResponse


class GenerationInProgress(GenerationEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model works."""

    response: GeneratedResponse


class GenerationCompleted(GenerationEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The response is complete."""

    response: GeneratedResponse


class GenerationIncomplete(GenerationEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response ended before its end."""

    response: GeneratedResponse


class GenerationFailed(GenerationEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The response failed."""

    response: GeneratedResponse


class OutputEvent(GenerationEvent, frozen=True, kw_only=True):
    """Base of the events of one item."""

    output_index: int


class OutputItemAdded(OutputEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class OutputItemDone(OutputEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is complete."""

    item: OutputItem


class ContentPartAdded(OutputEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part of an item's content begins."""

    item_id: str
    content_index: int
    part: OutputTextPart | ThoughtText


class ContentPartDone(OutputEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part of an item's content is complete."""

    item_id: str
    content_index: int
    part: OutputTextPart | ThoughtText


class OutputTextDelta(OutputEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """A piece of a message's text."""

    item_id: str
    content_index: int
    delta: str
    logprobs: list[Any] = []


class OutputTextDone(OutputEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The text of a message."""

    item_id: str
    content_index: int
    text: str
    logprobs: list[Any] = []


class ReasoningTextDelta(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """A piece of a thought."""

    item_id: str
    content_index: int
    delta: str


class ReasoningTextDone(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """A thought."""

    item_id: str
    content_index: int
    text: str


class SummaryPartAdded(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    """A part of a thought's summary begins."""

    item_id: str
    summary_index: int
    part: SummaryText


class SummaryPartDone(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    """A part of a thought's summary is complete."""

    item_id: str
    summary_index: int
    part: SummaryText


class SummaryTextDelta(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """A piece of a thought's summary."""

    item_id: str
    summary_index: int
    delta: str


class SummaryTextDone(OutputEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"):
    """A thought's summary."""

    item_id: str
    summary_index: int
    text: str


class CallArgumentsDelta(OutputEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments."""

    item_id: str
    delta: str


class CallArgumentsDone(OutputEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a call."""

    item_id: str
    name: str
    arguments: str


class CustomInputDelta(OutputEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """A piece of the text of a custom tool's call."""

    item_id: str
    delta: str


class CustomInputDone(OutputEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The text of a custom tool's call."""

    item_id: str
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
