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
from collections.abc import Callable, Iterator
from typing import Any, Protocol

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


class ItemPlace:
    """Where an item stands in the output: makes its events, each with the next number.

    Args:
        numbers: of the stream's events.
        index: its place in the output.
        identity: its id.
    """

    def __init__(self, numbers: EventNumbers, index: int, identity: str) -> None:
        self._numbers, self._index, self.id = numbers, index, identity

    def event(self, kind: Callable[..., wire.GenerationEvent], **fields: Any) -> wire.GenerationEvent:
        """An event about a part of the item, with its other fields."""
        return kind(sequence_number=self._numbers.take(), output_index=self._index, item_id=self.id, **fields)

    def added(self, item: OutputItem) -> wire.GenerationEvent:
        """The first event of the item."""
        return wire.OutputItemAdded(sequence_number=self._numbers.take(), output_index=self._index, item=item)

    def done(self, item: OutputItem) -> wire.GenerationEvent:
        """The last event of the item."""
        return wire.OutputItemDone(sequence_number=self._numbers.take(), output_index=self._index, item=item)


class OpenMessage:
    """A message that grows.

    Args:
        place: of the item.
    """

    def __init__(self, place: ItemPlace) -> None:
        self._place = place
        self._text: list[str] = []
        self._scores: list[TokenLogprob] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        yield self._place.added(OutputMessageItem(id=self._place.id, content=[], status="in_progress"))
        yield self._place.event(wire.ContentPartAdded, content_index=0, part=OutputTextPart(text=""))

    def add(self, text: str, scores: list[TokenLogprob]) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of text with its log-probabilities."""
        self._text.append(text)
        self._scores += scores
        yield self._place.event(wire.OutputTextDelta, content_index=0, delta=text, logprobs=scores)

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        item = self.item(status)
        (part,) = item.content
        yield self._place.event(wire.OutputTextDone, content_index=0, text=part.text, logprobs=self._scores)
        yield self._place.event(wire.ContentPartDone, content_index=0, part=part)
        yield self._place.done(item)

    def item(self, status: ItemStatus) -> OutputMessageItem:
        """Implement `OpenItem.item`."""
        part = OutputTextPart(text="".join(self._text), logprobs=self._scores)
        return OutputMessageItem(id=self._place.id, content=[part], status=status)


class OpenThought:
    """A thought that grows.

    Args:
        place: of the item.
        seal: whether the item has `encrypted_content`.
        summarised: whether the thought is shown as a summary, not as content.
    """

    def __init__(self, place: ItemPlace, *, seal: bool, summarised: bool) -> None:
        self._place, self._seal, self._summarised = place, seal, summarised
        self._text: list[str] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        content: list[ThoughtText] | None = None if self._summarised else []
        encrypted = "" if self._seal else UNSET
        yield self._place.added(
            ReasoningItem(id=self._place.id, content=content, status="in_progress", encrypted_content=encrypted)
        )
        if self._summarised:
            yield self._place.event(wire.SummaryPartAdded, summary_index=0, part=SummaryText(text=""))
        else:
            yield self._place.event(wire.ContentPartAdded, content_index=0, part=ThoughtText(text=""))

    def add(self, text: str) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of the thought."""
        self._text.append(text)
        if self._summarised:
            yield self._place.event(wire.SummaryTextDelta, summary_index=0, delta=text)
        else:
            yield self._place.event(wire.ReasoningTextDelta, content_index=0, delta=text)

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        text = "".join(self._text)
        if self._summarised:
            yield self._place.event(wire.SummaryTextDone, summary_index=0, text=text)
            yield self._place.event(wire.SummaryPartDone, summary_index=0, part=SummaryText(text=text))
        else:
            yield self._place.event(wire.ReasoningTextDone, content_index=0, text=text)
            yield self._place.event(wire.ContentPartDone, content_index=0, part=ThoughtText(text=text))
        yield self._place.done(self.item(status))

    def item(self, status: ItemStatus) -> ReasoningItem:
        """Implement `OpenItem.item`."""
        text = "".join(self._text)
        encrypted = sealed(text) if self._seal else UNSET
        if self._summarised:
            return ReasoningItem(
                id=self._place.id, summary=[SummaryText(text=text)], status=status, encrypted_content=encrypted
            )
        return ReasoningItem(
            id=self._place.id, content=[ThoughtText(text=text)], status=status, encrypted_content=encrypted
        )


class OpenCall:
    """A call of a tool that grows.

    The arguments of a function are passed on as they come. The text of a custom tool and the parameters of a tool of
    the client are known only when the arguments are whole.

    Args:
        place: of the item.
        call_id: id of the call, which its result names.
        tool: that is called.
    """

    def __init__(self, place: ItemPlace, call_id: str, tool: CallableTool) -> None:
        self._place, self._call_id, self._tool = place, call_id, tool
        self._arguments: list[str] = []

    def begin(self) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.begin`."""
        yield self._place.added(self.item("in_progress"))

    def add(self, arguments: str) -> Iterator[wire.GenerationEvent]:
        """The event of a piece of the arguments."""
        self._arguments.append(arguments)
        if self._tool.kind == "function":
            yield self._place.event(wire.CallArgumentsDelta, delta=arguments)

    def end(self, status: ItemStatus) -> Iterator[wire.GenerationEvent]:
        """Implement `OpenItem.end`."""
        item = self.item(status)
        if isinstance(item, FunctionCallItem):
            yield self._place.event(wire.CallArgumentsDone, name=item.name, arguments=item.arguments)
        elif isinstance(item, CustomToolCallItem):
            yield self._place.event(wire.CustomInputDelta, delta=item.input)
            yield self._place.event(wire.CustomInputDone, input=item.input)
        yield self._place.done(item)

    def item(self, status: ItemStatus) -> OutputItem:
        """Implement `OpenItem.item`."""
        text, tool = "".join(self._arguments), self._tool
        if tool.kind == "function":
            return FunctionCallItem(
                id=self._place.id,
                call_id=self._call_id,
                name=tool.name,
                arguments=text,
                namespace=tool.namespace or UNSET,
                status=status,
            )
        if tool.kind == "custom":
            return CustomToolCallItem(
                id=self._place.id,
                call_id=self._call_id,
                name=tool.name,
                input="" if status == "in_progress" else custom_input(text),
                namespace=tool.namespace or UNSET,
                status=status,
            )
        return CLIENT_TOOLS[tool.kind].item(self._place.id, self._call_id, _object(text), status != "in_progress")


def item_prefix(tool: CallableTool) -> str:
    """How the ids of a tool's calls begin, as OpenAI has it."""
    return {"function": "fc", "custom": "ctc"}.get(tool.kind) or CLIENT_TOOLS[tool.kind].prefix


def _object(text: str) -> dict[str, object]:
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
