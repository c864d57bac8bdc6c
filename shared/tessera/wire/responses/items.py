"""Items of a conversation: messages, thoughts, calls of tools and their results.

Items that the model made (they come back in a history) may have fields that are unknown here; `OURS` lists them. Items
that the client wrote are read strictly. The same types are the output of a response.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tessera.wire.chat import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class ResponseItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all items, which are told apart by their `type`."""


class InputTextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """A text that the model reads."""

    text: str


class InputImagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_image"):
    """A picture by data URL."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class InputFilePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_file"):
    """A file whose text the model reads."""

    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class InputAudioData(msgspec.Struct, frozen=True, kw_only=True):
    """A recording in base64."""

    data: str
    format: Literal["wav", "mp3"]


class InputAudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """A recording within a user's message."""

    input_audio: InputAudioData


class PlainTextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text, as some clients write it."""

    text: str


class OutputTextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """A text that the model wrote."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal in place of a text."""

    refusal: str


ContentPart = (
    InputTextPart | InputImagePart | InputFilePart | InputAudioPart | PlainTextPart | OutputTextPart | RefusalPart
)


class InputMessageItem(ResponseItem, frozen=True, kw_only=True, tag="message", forbid_unknown_fields=True):
    """A message that the client wrote."""

    role: Literal["user", "system", "developer"]
    content: str | list[ContentPart]
    id: str | None = None
    status: ItemStatus | None = None


class HistoryMessageItem(ResponseItem, frozen=True, kw_only=True, tag="message"):
    """A message of the assistant in a history."""

    content: str | list[ContentPart]
    role: Literal["assistant"] = "assistant"


class SummaryText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """A thought in the form of a summary."""

    text: str


class ThoughtText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """A thought."""

    text: str


class ReasoningItem(ResponseItem, frozen=True, kw_only=True, tag="reasoning"):
    """A thought of the model."""

    id: str = ""
    summary: list[SummaryText] = []
    content: list[ThoughtText] | None = None
    encrypted_content: str | UnsetType | None = UNSET
    """The thought in a form that only this suite reads; asked for by `include`."""
    status: ItemStatus | None = None


class FunctionCallItem(ResponseItem, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON."""

    name: str
    arguments: str
    call_id: CallId
    id: str | None = None
    namespace: str | UnsetType | None = UNSET
    status: ItemStatus | None = None


class FunctionCallOutputItem(
    ResponseItem, frozen=True, kw_only=True, tag="function_call_output", forbid_unknown_fields=True
):
    """What a function returned."""

    call_id: CallId
    output: str | list[ContentPart]
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class CustomToolCallItem(ResponseItem, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a tool that takes any text."""

    name: str
    input: str
    call_id: CallId
    id: str | None = None
    namespace: str | UnsetType | None = UNSET
    status: ItemStatus | None = None


class CustomToolCallOutputItem(
    ResponseItem, frozen=True, kw_only=True, tag="custom_tool_call_output", forbid_unknown_fields=True
):
    """What such a tool returned."""

    call_id: CallId
    output: str | list[ContentPart]
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    caller: dict[str, Any] | None = None


class LocalShellCallItem(ResponseItem, frozen=True, kw_only=True, tag="local_shell_call"):
    """A command for the client's shell."""

    action: dict[str, Any]
    call_id: CallId
    id: str = ""
    status: ItemStatus = "completed"


class LocalShellCallOutputItem(
    ResponseItem, frozen=True, kw_only=True, tag="local_shell_call_output", forbid_unknown_fields=True
):
    """What the client's shell printed."""

    output: str
    id: str
    """Id of the call that is answered."""
    call_id: str | None = None
    status: ItemStatus | None = None


class ShellCallItem(ResponseItem, frozen=True, kw_only=True, tag="shell_call"):
    """Commands for the client's shell."""

    action: dict[str, Any]
    call_id: CallId
    id: str = ""
    environment: dict[str, Any] | None = None
    status: ItemStatus = "completed"


class ShellCallOutputItem(ResponseItem, frozen=True, kw_only=True, tag="shell_call_output", forbid_unknown_fields=True):
    """What the client's shell printed for each command."""

    call_id: CallId
    output: list[dict[str, Any]] | str
    id: str | None = None
    status: ItemStatus | None = None
    max_output_length: int | None = None
    caller: dict[str, Any] | None = None


class ApplyPatchCallItem(ResponseItem, frozen=True, kw_only=True, tag="apply_patch_call"):
    """A change of a file, which the client applies."""

    operation: dict[str, Any]
    call_id: CallId
    id: str = ""
    status: Literal["in_progress", "completed"] = "completed"


class ApplyPatchCallOutputItem(
    ResponseItem, frozen=True, kw_only=True, tag="apply_patch_call_output", forbid_unknown_fields=True
):
    """What became of a change."""

    call_id: CallId
    status: Literal["completed", "failed"]
    id: str | None = None
    output: str | None = None
    caller: dict[str, Any] | None = None


class ItemReference(ResponseItem, frozen=True, kw_only=True, tag="item_reference", forbid_unknown_fields=True):
    """An item of a kept response, by its id."""

    id: str


class OutputMessageItem(ResponseItem, frozen=True, kw_only=True, tag="message"):
    """A message that the model wrote."""

    id: str
    content: list[OutputTextPart]
    status: ItemStatus
    role: Literal["assistant"] = "assistant"


OutputItem = (
    OutputMessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomToolCallItem
    | LocalShellCallItem
    | ShellCallItem
    | ApplyPatchCallItem
)
