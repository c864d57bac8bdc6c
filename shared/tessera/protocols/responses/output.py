"""The output of a response as it grows: items open and close, and each change is an event in OpenAI's order.

    an item     output_item.added … output_item.done
    a message     content_part.added, output_text.delta …, output_text.done, content_part.done
    a thought     content_part.added, reasoning_text.delta …, reasoning_text.done, content_part.done
                  or, as a summary, reasoning_summary_part.added, reasoning_summary_text.delta …, …
    a call        function_call_arguments.delta …, function_call_arguments.done
                  or, of a custom tool, custom_tool_call_input.delta …, custom_tool_call_input.done

One item is open at a time. Knows neither chat nor the response around the output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

from msgspec import UNSET

from tessera.protocols.responses.client_tools import CLIENT_TOOLS
from tessera.protocols.responses.thoughts import sealed
from tessera.protocols.responses.tools import CallableTool, custom_input
from tessera.wire.chat import TokenLogprob
from tessera.wire.responses import events as wire
from tessera.wire.responses.items import (
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessageItem,
    OutputTextPart,
    ReasoningItem,
    SummaryText,
    ThoughtText,
)


class EventNumbers:
    """Numbers the events of a stream from 0."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        """The number of the next event."""
        self._next += 1
        return self._next - 1


class OpenItem(Protocol):
    """An item that grows."""

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """The events of its beginning."""
        ...

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """The events of its end."""
        ...

    def item(self, status: ItemStatus) -> OutputItem:
        """The item as it is now."""
        ...


class OpenMessage:
    """A message that grows.

    Args:
        numbers: of the stream's events.
        index: its place in the output.
        identity: its id.
    """

    def __init__(self, numbers: EventNumbers, index: int, identity: str) -> None:
        self._numbers, self._index, self._id = numbers, index, identity
        self._text: list[str] = []
        self._scores: list[TokenLogprob] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        item = OutputMessageItem(id=self._id, content=[], status="in_progress")
        yield wire.OutputItemAdded(sequence_number=self._numbers.take(), output_index=self._index, item=item)
        yield wire.ContentPartAdded(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            part=OutputTextPart(text=""),
        )

    def add(self, text: str, scores: list[TokenLogprob]) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of text with its log-probabilities."""
        self._text.append(text)
        self._scores += scores
        yield wire.OutputTextDelta(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            delta=text,
            logprobs=scores,
        )

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        item = self.item(status)
        yield wire.OutputTextDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            text=item.content[0].text,
            logprobs=self._scores,
        )
        yield wire.ContentPartDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            part=item.content[0],
        )
        yield wire.OutputItemDone(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> OutputMessageItem:
        """Implement `OpenItem.item`."""
        part = OutputTextPart(text="".join(self._text), logprobs=self._scores)
        return OutputMessageItem(id=self._id, content=[part], status=status)


class OpenThought:
    """A thought that grows, as content.

    Args:
        numbers: of the stream's events.
        index: its place in the output.
        identity: its id.
        seal: whether the item has `encrypted_content`.
    """

    def __init__(self, numbers: EventNumbers, index: int, identity: str, *, seal: bool) -> None:
        self._numbers, self._index, self._id, self._seal = numbers, index, identity, seal
        self._text: list[str] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        item = ReasoningItem(
            id=self._id, content=[], status="in_progress", encrypted_content="" if self._seal else UNSET
        )
        yield wire.OutputItemAdded(sequence_number=self._numbers.take(), output_index=self._index, item=item)
        yield wire.ContentPartAdded(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            part=ThoughtText(text=""),
        )

    def add(self, text: str) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of the thought."""
        self._text.append(text)
        yield wire.ReasoningTextDelta(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            delta=text,
        )

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        text = "".join(self._text)
        yield wire.ReasoningTextDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            text=text,
        )
        yield wire.ContentPartDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            content_index=0,
            part=ThoughtText(text=text),
        )
        item = self.item(status)
        yield wire.OutputItemDone(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> ReasoningItem:
        """Implement `OpenItem.item`."""
        text = "".join(self._text)
        content = sealed(text) if self._seal else UNSET
        return ReasoningItem(id=self._id, content=[ThoughtText(text=text)], status=status, encrypted_content=content)


class OpenSummary:
    """A thought that grows, in the form of a summary.

    Args:
        numbers: of the stream's events.
        index: its place in the output.
        identity: its id.
        seal: whether the item has `encrypted_content`.
    """

    def __init__(self, numbers: EventNumbers, index: int, identity: str, *, seal: bool) -> None:
        self._numbers, self._index, self._id, self._seal = numbers, index, identity, seal
        self._text: list[str] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        item = ReasoningItem(id=self._id, status="in_progress", encrypted_content="" if self._seal else UNSET)
        yield wire.OutputItemAdded(sequence_number=self._numbers.take(), output_index=self._index, item=item)
        yield wire.SummaryPartAdded(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            summary_index=0,
            part=SummaryText(text=""),
        )

    def add(self, text: str) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of the thought."""
        self._text.append(text)
        yield wire.SummaryTextDelta(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            summary_index=0,
            delta=text,
        )

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        text = "".join(self._text)
        yield wire.SummaryTextDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            summary_index=0,
            text=text,
        )
        yield wire.SummaryPartDone(
            sequence_number=self._numbers.take(),
            output_index=self._index,
            item_id=self._id,
            summary_index=0,
            part=SummaryText(text=text),
        )
        item = self.item(status)
        yield wire.OutputItemDone(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> ReasoningItem:
        """Implement `OpenItem.item`."""
        text = "".join(self._text)
        content = sealed(text) if self._seal else UNSET
        return ReasoningItem(id=self._id, summary=[SummaryText(text=text)], status=status, encrypted_content=content)


class OpenCall:
    """A call of a tool that grows.

    The arguments of a function are passed on as they come. The text of a custom tool and the parameters of a tool of
    the client are known only when the arguments are whole.

    Args:
        numbers: of the stream's events.
        index: its place in the output.
        identity: its id, without the prefix of its kind.
        call_id: id of the call, which its result names.
        tool: that is called.
    """

    def __init__(self, numbers: EventNumbers, index: int, identity: str, call_id: str, tool: CallableTool) -> None:
        prefixes = {"function": "fc", "custom": "ctc"}
        prefix = prefixes.get(tool.kind) or CLIENT_TOOLS[tool.kind].prefix
        self._numbers, self._index, self._id = numbers, index, f"{prefix}_{identity}"
        self._call_id, self._tool = call_id, tool
        self._arguments: list[str] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        item = self.item("in_progress")
        yield wire.OutputItemAdded(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def add(self, arguments: str) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of the arguments."""
        self._arguments.append(arguments)
        if self._tool.kind == "function":
            yield wire.CallArgumentsDelta(
                sequence_number=self._numbers.take(), output_index=self._index, item_id=self._id, delta=arguments
            )

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        item = self.item(status)
        if isinstance(item, FunctionCallItem):
            yield wire.CallArgumentsDone(
                sequence_number=self._numbers.take(),
                output_index=self._index,
                item_id=self._id,
                name=item.name,
                arguments=item.arguments,
            )
        elif isinstance(item, CustomToolCallItem):
            yield wire.CustomInputDelta(
                sequence_number=self._numbers.take(), output_index=self._index, item_id=self._id, delta=item.input
            )
            yield wire.CustomInputDone(
                sequence_number=self._numbers.take(), output_index=self._index, item_id=self._id, input=item.input
            )
        yield wire.OutputItemDone(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def item(self, status: ItemStatus) -> OutputItem:
        """Implement `OpenItem.item`."""
        text, tool = "".join(self._arguments), self._tool
        if tool.kind == "function":
            return FunctionCallItem(
                id=self._id,
                call_id=self._call_id,
                name=tool.name,
                arguments=text,
                namespace=tool.namespace or UNSET,
                status=status,
            )
        if tool.kind == "custom":
            return CustomToolCallItem(
                id=self._id,
                call_id=self._call_id,
                name=tool.name,
                input="" if status == "in_progress" else custom_input(text),
                namespace=tool.namespace or UNSET,
                status=status,
            )
        return CLIENT_TOOLS[tool.kind].item(self._id, self._call_id, _object(text), status != "in_progress")


def _object(text: str) -> dict[str, object]:
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
