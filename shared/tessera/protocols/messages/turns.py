"""Turns of Anthropic's messages as chat messages.

One turn can become several chat messages: results of calls are messages of their own, and images in them follow as a
user's message, because chat templates take only text there. Turns of one role in a row are one turn, as Anthropic has
it. An instruction in the midst of a conversation stays at its place, marked, in the user's turn: most templates take a
system message at the beginning only. Does not know tools or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera.errors import InvalidRequestError
from tessera.wire.conversation import FileContent, FilePart, ImagePart, ImageURL, Message, Part, TextPart
from tessera.wire.messages import (
    Base64Source,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    InputBlock,
    MessageTurn,
    PlainTextSource,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from tessera.wire.tools import CalledFunction, ToolCall

BILLING_MARK = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code sends for Anthropic's accounts. It is different for each session, and would
keep prompts from sharing the prefix cache; it is left out of the prompt."""
REMINDER = "<system-reminder>\n{}\n</system-reminder>"
"""How an instruction in the midst of a conversation is marked: Claude Code's own form."""


def system_text(system: str | list[TextBlock] | None) -> str | None:
    """The system prompt as one text; None when there is none."""
    if system is None or isinstance(system, str):
        return system or None
    return "\n".join(block.text for block in system if not block.text.startswith(BILLING_MARK)) or None


def chat_messages(turns: list[MessageTurn], *, keep_thoughts: int | None) -> list[Message]:
    """The conversation as chat messages.

    Args:
        turns: of the request.
        keep_thoughts: number of the assistant's last turns whose thoughts stay; None for all.

    Raises:
        InvalidRequestError: a block does not belong into its turn, or cannot be read here; names it.
    """
    conversation = _Conversation()
    answers = sum(turn.role == "assistant" for turn in turns)
    for index, turn in enumerate(turns):
        at = f"messages[{index}].content"
        blocks: Sequence[InputBlock] = [TextBlock(turn.content)] if isinstance(turn.content, str) else turn.content
        if turn.role == "assistant":
            answers -= 1
            conversation.assistant(blocks, at, thoughts=keep_thoughts is None or answers < keep_thoughts)
        elif turn.role == "system":
            conversation.reminder(blocks, at)
        else:
            conversation.user(blocks, at)
    return conversation.finished()


class _Conversation:
    """Chat messages so far, and the parts of a user's message that is not complete yet."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._parts: list[Part] = []

    def finished(self) -> list[Message]:
        self._close()
        return self._messages

    def user(self, blocks: Sequence[InputBlock], at: str) -> None:
        parts: list[Part] = []
        for place, block in enumerate(blocks):
            here = f"{at}[{place}]"
            if isinstance(block, ToolResultBlock):
                parts += self._result(block, here)
            elif isinstance(block, ThinkingBlock | RedactedThinkingBlock | ToolUseBlock):
                raise _misplaced(block, here, "the assistant's")
            else:
                parts += _parts_of(block, here)
        self._parts += parts

    def reminder(self, blocks: Sequence[InputBlock], at: str) -> None:
        texts = []
        for place, block in enumerate(blocks):
            if not isinstance(block, TextBlock):
                raise InvalidRequestError(f"`{at}[{place}]`: a system turn has only text", param=f"{at}[{place}]")
            texts.append(block.text)
        self._parts.append(TextPart(REMINDER.format("\n".join(texts))))

    def assistant(self, blocks: Sequence[InputBlock], at: str, *, thoughts: bool) -> None:
        self._close()
        texts, thought, calls = [], [], []
        for place, block in enumerate(blocks):
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ThinkingBlock):
                thought.append(block.thinking)
            elif isinstance(block, ToolUseBlock):
                arguments = msgspec.json.encode(block.input).decode()
                called = CalledFunction(name=block.name, arguments=arguments)
                calls.append(ToolCall(id=block.id, function=called, type="function"))
            elif not isinstance(block, RedactedThinkingBlock):
                raise _misplaced(block, f"{at}[{place}]", "the user's")
        text = "".join(texts)
        message = Message(
            role="assistant",
            content=None if calls and not text else text,
            tool_calls=calls or None,
            reasoning_content="\n".join(thought) if thoughts and any(thought) else None,
        )
        before = self._messages[-1] if self._messages else None
        if before is not None and before.role == "assistant":
            self._messages[-1] = _joined(before, message)
        else:
            self._messages.append(message)

    def _result(self, block: ToolResultBlock, at: str) -> list[Part]:
        """Add the result of a call as a message; returns its images and files, which come behind all results."""
        parts: list[Part] = []
        if isinstance(block.content, str):
            parts.append(TextPart(block.content))
        else:
            for place, inner in enumerate(block.content or []):
                parts += _parts_of(inner, f"{at}.content[{place}]")
        text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
        if block.is_error:
            text = f"Error: {text}"
        self._messages.append(Message(role="tool", content=text, tool_call_id=block.tool_use_id))
        files = [part for part in parts if not isinstance(part, TextPart)]
        return [TextPart(f"Files of the result of {block.tool_use_id}:"), *files] if files else []

    def _close(self) -> None:
        if not self._parts:
            return
        texts = [part.text for part in self._parts if isinstance(part, TextPart)]
        # Plain text wherever that is all: every server takes it.
        content = "\n".join(texts) if len(texts) == len(self._parts) else self._parts
        self._messages.append(Message(role="user", content=content))
        self._parts = []


def _joined(one: Message, other: Message) -> Message:
    """Two turns of the assistant as one."""
    thoughts = [thought for thought in (one.reasoning_content, other.reasoning_content) if thought]
    text = f"{one.content or ''}{other.content or ''}"
    calls = [*(one.tool_calls or []), *(other.tool_calls or [])]
    return Message(
        role="assistant",
        content=None if calls and not text else text,
        tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )


def _misplaced(block: InputBlock, at: str, whose: str) -> InvalidRequestError:
    kind = type(block).__struct_config__.tag
    return InvalidRequestError(f"`{at}`: a block of type {kind!r} belongs into {whose} turn", param=at)


def _parts_of(
    block: TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock, at: str
) -> list[Part]:
    if isinstance(block, TextBlock):
        return [TextPart(block.text)]
    if isinstance(block, ImageBlock):
        return [_image(block, at)]
    if isinstance(block, SearchResultBlock):
        _refuse_citations(block, at)
        texts = "\n".join(inner.text for inner in block.content)
        return [TextPart(f"Search result: {block.title}\nSource: {block.source}\n{texts}")]
    if isinstance(block, DocumentBlock):
        _refuse_citations(block, at)
        return _document(block, at)
    return [TextPart(f"The tool {block.tool_name} can be called now.")]


def _image(block: ImageBlock, at: str) -> ImagePart:
    source = block.source
    if isinstance(source, Base64Source):
        return ImagePart(ImageURL(f"data:{source.media_type};base64,{source.data}"))
    raise _remote(source, f"{at}.source", "image")


def _document(block: DocumentBlock, at: str) -> list[Part]:
    source = block.source
    head = [
        TextPart(f"{name}: {value}") for name, value in (("Document", block.title), ("Context", block.context)) if value
    ]
    if isinstance(source, PlainTextSource):
        return [*head, TextPart(source.data)]
    if isinstance(source, ContentSource):
        inner = [TextBlock(source.content)] if isinstance(source.content, str) else source.content
        return [
            *head,
            *(part for place, each in enumerate(inner) for part in _parts_of(each, f"{at}.source.content[{place}]")),
        ]
    if isinstance(source, Base64Source):
        data = f"data:{source.media_type};base64,{source.data}"
        return [*head, FilePart(FileContent(file_data=data, filename=block.title))]
    raise _remote(source, f"{at}.source", "document")


def _remote(source: object, param: str, kind: str) -> InvalidRequestError:
    if isinstance(source, UrlSource):
        text = f"`{param}`: a remote {kind} is not fetched; send its data as a source of type base64"
    else:
        text = f"`{param}`: there is no store of files here; send the {kind}'s data as a source of type base64"
    return InvalidRequestError(text, param=param)


def _refuse_citations(block: DocumentBlock | SearchResultBlock, at: str) -> None:
    if block.citations is not None and block.citations.enabled:
        param = f"{at}.citations"
        raise InvalidRequestError(f"`{param}`: this server does not cite; leave it out", param=param)
