"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": …}, …]`, and since 2025 `[TOOL_CALLS]name[ARGS]{…}` for each call.

Source: mistral-common's instruct tokenizers (v3, v7, v11, v13) and the models' chat templates.
"""

from __future__ import annotations

from tessera.language.parsers.json_call import JsonCalls
from tessera.language.parsers.scanner import END, Steps

BEGIN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MOST_NAME = 256
"""Most characters of a tool's name."""


class Mistral(JsonCalls):
    """Parses a list of calls, and calls by name."""

    openings = (BEGIN,)

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        while True:
            marker, space = yield from self.until((BEGIN,), self.content, trim=True)
            if marker == END:
                return
            self.remember(space + marker)
            yield from self.space()
            character = yield from self.peek()
            if character == "[":
                yield from self._list()
            elif character == "{":
                yield from self.call_object()
            else:
                yield from self._named()
            self.give_back()

    def _list(self) -> Steps[None]:
        yield from self.take()
        yield from self.space()
        while (yield from self.call_object()):
            self.remember("", framed=True)
            yield from self.space()
            if (yield from self.accept("]")):
                self.remember("")
                return
            if not (yield from self.accept(",")):
                return
            yield from self.space()

    def _named(self) -> Steps[None]:
        name = yield from self._name()
        if (yield from self.accept(CALL_ID)):
            yield from self._name()
        yield from self.accept(ARGS)
        yield from self.space()
        if not name or (yield from self.peek()) != "{":
            return
        index = self.begin_call(name)
        yield from self.value(self.argument_sink(index))
        self.end_call(index)

    def _name(self) -> Steps[str]:
        name = ""
        while len(name) < MOST_NAME:
            character = yield from self.take()
            if not (character.isalnum() or (character and character in "_-.")):
                self.unread(character)
                break
            name += character
        return name
