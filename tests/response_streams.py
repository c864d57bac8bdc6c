"""The order of a response's stream, checked by a state machine that shares nothing with the code that makes it.

Each event is also validated by the types of OpenAI's SDK, strictly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pydantic
from openai.types.responses import ResponseStreamEvent

ENDS = {"response.completed", "response.incomplete", "response.failed"}
TEXTS = {
    "message": ("output_text", "output_text"),
    "reasoning": ("reasoning_text", "reasoning_text"),
}


@cache
def adapter() -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(ResponseStreamEvent)


def parsed(stream: bytes | str) -> list[dict[str, Any]]:
    """The events of a stream's text; the SSE name of each is its type."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        named = dict(fields)
        if not named:
            continue
        event = json.loads(named["data"])
        assert named["event"] == event["type"], block
        found.append(event)
    return found


class StreamOrder:
    """Takes events one by one and fails at the first that is out of order."""

    def __init__(self) -> None:
        self.number = 0
        self.state = "new"
        self.items: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self.part = "none"
        self.text = ""
        self.final: dict[str, Any] | None = None
        self.identity = ""

    def take(self, event: dict[str, Any]) -> None:
        adapter().validate_python(event, strict=True)
        assert event["sequence_number"] == self.number, (self.number, event)
        self.number += 1
        assert self.final is None, f"an event behind the end: {event}"
        kind = event["type"]
        if kind in {"response.created", "response.queued", "response.in_progress"} or kind in ENDS:
            self._lifecycle(kind, event["response"])
            return
        assert self.state == "response.in_progress", (self.state, kind)
        assert event["output_index"] == len(self.items), event
        if kind == "response.output_item.added":
            assert self.open is None
            assert event["item"].get("status") == "in_progress", event
            self.open, self.part, self.text = event["item"], "none", ""
        elif kind == "response.output_item.done":
            self._done(event["item"])
        else:
            assert self.open is not None
            assert event["item_id"] == self.open["id"]
            self._within(kind.removeprefix("response."), event)

    def _lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        before = {
            "response.created": {"new"},
            "response.queued": {"response.created"},
            "response.in_progress": {"response.created", "response.queued"},
        }.get(kind, {"response.in_progress"})
        assert self.state in before, (self.state, kind)
        self.state = kind
        self.identity = self.identity or response["id"]
        assert response["id"] == self.identity
        if kind in ENDS:
            assert self.open is None, "an item is open at the end"
            assert response["output"] == self.items
            assert response["status"] == kind.removeprefix("response.")
            self.final = response
        else:
            assert response["output"] == []
            assert response["status"] in {"in_progress", "queued"}

    def _within(self, kind: str, event: dict[str, Any]) -> None:
        assert self.open is not None
        steps = {
            "content_part.added": ("none", "part"),
            "output_text.delta": ("part", "part"),
            "output_text.done": ("part", "text"),
            "reasoning_text.delta": ("part", "part"),
            "reasoning_text.done": ("part", "text"),
            "content_part.done": ("text", "ended"),
            "reasoning_summary_part.added": ("none", "part"),
            "reasoning_summary_text.delta": ("part", "part"),
            "reasoning_summary_text.done": ("part", "text"),
            "reasoning_summary_part.done": ("text", "ended"),
            "function_call_arguments.delta": ("none", "none"),
            "function_call_arguments.done": ("none", "ended"),
            "custom_tool_call_input.delta": ("none", "none"),
            "custom_tool_call_input.done": ("none", "ended"),
        }
        before, after = steps[kind]
        assert self.part == before, (self.part, event)
        self.part = after
        allowed = {
            "message": ("content_part", "output_text"),
            "reasoning": ("content_part", "reasoning_text", "reasoning_summary"),
            "function_call": ("function_call_arguments",),
            "custom_tool_call": ("custom_tool_call_input",),
        }[self.open["type"]]
        assert kind.startswith(allowed), event
        self.text += event.get("delta", "")
        if kind.endswith(".done"):
            whole = event.get("text", event.get("arguments", event.get("input")))
            whole = event["part"]["text"] if whole is None else whole
            assert whole == self.text

    def _done(self, item: dict[str, Any]) -> None:
        assert self.open is not None
        assert item["id"] == self.open["id"]
        assert item["type"] == self.open["type"]
        structured = item["type"] in {"local_shell_call", "shell_call", "apply_patch_call"}
        assert self.part == ("none" if structured else "ended"), item
        if not structured:
            assert whole_text(item) == self.text
        self.items.append(item)
        self.open = None


def whole_text(item: dict[str, Any]) -> str:
    """The text of an item, wherever its type has it."""
    if item["type"] == "function_call":
        return item["arguments"]
    if item["type"] == "custom_tool_call":
        return item["input"]
    return "".join(part["text"] for part in [*(item.get("content") or []), *item.get("summary", [])])


def check_order(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The final response of a whole stream in order."""
    order = StreamOrder()
    for event in events:
        order.take(event)
    assert order.final is not None, "the stream has no end"
    return order.final
