"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": …}</tool_call>`, and Qwen3-Coder's XML inside the same tags.

In XML a parameter is raw text, and the tool's schema says whether it is a string. Source: the models' chat templates.
"""

from __future__ import annotations

import json
from typing import Any

from tessera.language.parsers.json_call import JsonCalls
from tessera.language.parsers.scanner import END, Sink, Steps

BEGIN, END_TAG = "<tool_call>", "</tool_call>"
MOST_NAME = 256
"""Most characters of the name of a tool or a parameter."""


class Hermes(JsonCalls):
    """Parses calls in JSON and in XML.

    Args:
        schemas: the schema of each tool's parameters, by the tool's name.
    """

    openings = (BEGIN,)

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas
        super().__init__()

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        while True:
            marker, space = yield from self.until((BEGIN,), self.content, trim=True)
            if marker == END:
                return
            self.remember(space + marker)
            yield from self.space()
            if (yield from self.peek()) == "<":
                called = yield from self._xml()
            else:
                called = yield from self.call_object()
            if not called:
                self.give_back()
                continue
            space = yield from self.space()
            if not (yield from self.close(END_TAG)):
                self.unread(space)

    def _xml(self) -> Steps[bool]:
        if not (yield from self.accept("<function=")):
            return False
        name = yield from self._name()
        if not name:
            return False
        index = self.begin_call(name)
        sink = self.argument_sink(index)
        sink("{")
        properties = (self._schemas.get(name) or {}).get("properties") or {}
        first = True
        while True:
            yield from self.space()
            if not (yield from self.accept("<parameter=")):
                break
            key = yield from self._name()
            if key is None:
                break
            sink(f"{'' if first else ', '}{json.dumps(key, ensure_ascii=False)}: ")
            first = False
            if not (yield from self._parameter(sink, properties.get(key))):
                break
        yield from self.space()
        if (yield from self.accept("</function>")):
            sink("}")
        self.end_call(index)
        return True

    def _parameter(self, sink: Sink, schema: Any) -> Steps[bool]:
        """Read a parameter's value and pass it on as JSON. False when the text ends within it."""
        yield from self.accept("\n")
        ends = ("\n</parameter>", "</parameter>")
        if _is_text(schema):
            sink('"')
            marker, _ = yield from self.until(ends, lambda text: sink(_escaped(text)), trim=False)
            if marker != END:
                sink('"')
            return marker != END
        parts: list[str] = []
        marker, _ = yield from self.until(ends, parts.append, trim=False)
        if marker != END:
            sink(_as_json("".join(parts)))
        return marker != END

    def _name(self) -> Steps[str | None]:
        """The text before `>`; None when `>` does not come within `MOST_NAME` characters of the same line."""
        name = ""
        while len(name) < MOST_NAME:
            character = yield from self.take()
            if character == ">":
                return name.strip()
            if character in {END, "\n", "<"}:
                self.unread(character)
                return None
            name += character
        return None


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _is_text(schema: Any) -> bool:
    """Whether a parameter is a string. A parameter without a schema is one."""
    return not isinstance(schema, dict) or (schema.get("type", "string") == "string" and "enum" not in schema)


def _as_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
