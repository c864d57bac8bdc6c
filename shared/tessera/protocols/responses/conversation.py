"""Makes the messages of a chat request from the items of an input.

What the model made between two results of tools is one message of the assistant: its thought, its text and its calls.
System texts at the beginning become one message, because many templates allow only one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tessera.errors import InvalidRequestError
from tessera.protocols.responses.client_tools import CLIENT_TOOLS
from tessera.protocols.responses.thoughts import opened
from tessera.protocols.responses.tools import custom_arguments
from tessera.wire.conversation import (
    AudioPart,
    FileContent,
    FilePart,
    ImagePart,
    ImageURL,
    InputAudio,
    Message,
    Part,
    TextPart,
)
from tessera.wire.responses import items as wire
from tessera.wire.tools import CalledFunction, ToolCall


@dataclass
class _Turn:
    """A message of the assistant, as far as its items have come."""

    thought: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    wrote: bool = False

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self.text) if self.wrote or not self.calls else None,
            reasoning_content="".join(self.thought) or None,
            tool_calls=self.calls or None,
        )


class MessageList:
    """Collects messages.

    Args:
        instructions: the request's; None for none.
    """

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Message] = []
        self._turn: _Turn | None = None
        if instructions:
            self.messages.append(Message(role="system", content=instructions))

    def add(self, item: wire.ResponseItem, at: str) -> None:
        """Add an item.

        Args:
            item: of the input.
            at: its place, for errors.

        Raises:
            InvalidRequestError: the item has a part that no model here reads.
        """
        if isinstance(item, wire.HistoryMessageItem):
            self._assistant(item, at)
        elif isinstance(item, wire.ReasoningItem):
            self._thought(item, at)
        elif isinstance(item, wire.InputMessageItem):
            self._input(item, at)
        elif isinstance(item, wire.ItemReference):
            raise InvalidRequestError(
                f"`{at}` refers to the item {item.id!r}, which is not kept here", param=at, code="item_not_found"
            )
        elif (call := called(item)) is not None:
            self._open().calls.append(call)
        else:
            self._result(item, at)

    def end(self) -> list[Message]:
        """The messages.

        Raises:
            InvalidRequestError: there are none.
        """
        self._close()
        if not self.messages:
            raise InvalidRequestError(
                "`input` is required: a text, or the items of the conversation",
                param="input",
                code="missing_required_parameter",
            )
        return self.messages

    def _open(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _close(self) -> None:
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def _assistant(self, item: wire.HistoryMessageItem, at: str) -> None:
        if self._turn is not None and (self._turn.wrote or self._turn.calls):
            self._close()
        turn = self._open()
        turn.text.append(_plain_text(item.content, at))
        turn.wrote = True

    def _thought(self, item: wire.ReasoningItem, at: str) -> None:
        if self._turn is not None and (self._turn.wrote or self._turn.calls):
            self._close()
        texts = [part.text for part in item.content or item.summary]
        if not texts and isinstance(item.encrypted_content, str):
            texts = [opened(item.encrypted_content, at=f"{at}.encrypted_content")]
        self._open().thought.extend(texts)

    def _input(self, item: wire.InputMessageItem, at: str) -> None:
        self._close()
        content = _content(item.content, at)
        if item.role == "user":
            self.messages.append(Message(role="user", content=content))
            return
        before = self.messages[-1] if len(self.messages) == 1 else None
        if before is not None and before.role in {"system", "developer"}:
            texts = [_texts(before.content), _texts(content)]
            self.messages[-1] = Message(role="system", content="\n\n".join(texts))
        else:
            self.messages.append(Message(role="system", content=content))

    def _result(self, item: wire.ResponseItem, at: str) -> None:
        self._close()
        identity, content = _result_of(item, at)
        self.messages.append(Message(role="tool", content=content, tool_call_id=identity))


def called(item: wire.ResponseItem) -> ToolCall | None:
    """The call of an item; None if the item is none."""
    if isinstance(item, wire.FunctionCallItem):
        name = f"{item.namespace}__{item.name}" if item.namespace else item.name
        # A model that has no arguments to give may have written none.
        return ToolCall(
            id=item.call_id, type="function", function=CalledFunction(name=name, arguments=item.arguments or "{}")
        )
    if isinstance(item, wire.CustomToolCallItem):
        name = f"{item.namespace}__{item.name}" if item.namespace else item.name
        return ToolCall(
            id=item.call_id, type="function", function=CalledFunction(name=name, arguments=custom_arguments(item.input))
        )
    if isinstance(item, wire.LocalShellCallItem | wire.ShellCallItem | wire.ApplyPatchCallItem):
        name = {
            wire.LocalShellCallItem: "local_shell",
            wire.ShellCallItem: "shell",
            wire.ApplyPatchCallItem: "apply_patch",
        }[type(item)]
        arguments = json.dumps(CLIENT_TOOLS[name].arguments(item), ensure_ascii=False)
        return ToolCall(id=item.call_id, type="function", function=CalledFunction(name=name, arguments=arguments))
    return None


def _result_of(item: wire.ResponseItem, at: str) -> tuple[str, str | list[Part]]:
    """The id of the call that an item answers, and the answer."""
    if isinstance(item, wire.FunctionCallOutputItem | wire.CustomToolCallOutputItem):
        return item.call_id, _content(item.output, f"{at}.output", nested=False)
    if isinstance(item, wire.LocalShellCallOutputItem):
        return item.call_id or item.id, item.output
    if isinstance(item, wire.ShellCallOutputItem):
        return item.call_id, item.output if isinstance(item.output, str) else json.dumps(
            item.output, ensure_ascii=False
        )
    assert isinstance(item, wire.ApplyPatchCallOutputItem), "all other types are calls"
    return item.call_id, item.output or item.status


def _content(given: str | list[wire.ContentPart], at: str, *, nested: bool = True) -> str | list[Part]:
    if isinstance(given, str):
        return given
    at = f"{at}.content" if nested else at
    parts = [_part(part, f"{at}[{place}]") for place, part in enumerate(given)]
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts


def _plain_text(given: str | list[wire.ContentPart], at: str) -> str:
    return _texts(_content(given, at))


def _texts(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content if isinstance(part, TextPart))
    return content or ""


def _part(part: wire.ContentPart, at: str) -> Part:
    if isinstance(part, wire.InputTextPart | wire.PlainTextPart | wire.OutputTextPart):
        return TextPart(part.text)
    if isinstance(part, wire.RefusalPart):
        return TextPart(part.refusal)
    if isinstance(part, wire.InputImagePart):
        if not part.image_url:
            raise _unreadable(at, "`file_id` names no file here; send `image_url` with a data URL")
        return ImagePart(ImageURL(part.image_url, "high" if part.detail == "original" else part.detail or "auto"))
    if isinstance(part, wire.InputFilePart):
        if part.file_data is None:
            raise _unreadable(at, "send the file's bytes as `file_data`; files are not kept here and none are fetched")
        return FilePart(FileContent(file_data=part.file_data, filename=part.filename))
    return AudioPart(InputAudio(data=part.input_audio.data, format=part.input_audio.format))


def _unreadable(at: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{at}` cannot be read: {reason}", param=at, code="unsupported_value")
