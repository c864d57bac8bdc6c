"""Llama 3: bare JSON objects at the beginning of an answer or after `<|python_tag|>`, separated by semicolons.

A bare object is a call only when it names a tool of the request: an answer may be JSON too. Source: Meta's prompt
format of Llama 3.1 to 3.3.
"""

from __future__ import annotations

from collections.abc import Container

from tessera.language.parsers.json_call import JsonCalls
from tessera.language.parsers.scanner import END, Steps

TAG = "<|python_tag|>"


class Llama(JsonCalls):
    """Parses calls at the beginning of an answer and behind the tag.

    Args:
        names: of the request's tools.
    """

    openings = (TAG,)

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        super().__init__()

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        self.remember("")
        yield from self.space()
        if (yield from self.peek()) == "{":
            yield from self._objects(self._names)
        self.give_back()
        while True:
            marker, space = yield from self.until((TAG,), self.content, trim=True)
            if marker == END:
                return
            self.remember(space + marker)
            yield from self.space()
            yield from self._objects(None)
            self.give_back()  # code for an interpreter, which does not exist here

    def _objects(self, known: Container[str] | None) -> Steps[None]:
        while (yield from self.call_object(known)):
            self.remember("", framed=True)
            yield from self.space()
            if (yield from self.accept(";")) or (yield from self.accept(",")):
                yield from self.space()
            yield from self.accept(TAG)
            yield from self.space()
            if (yield from self.peek()) != "{":
                return
