"""Parses calls written as JSON objects, `{"name": …, "arguments": {…}}` in any order of keys, while they are written.

Only the structure is checked: brackets and strings must be right, because they show where a call ends. Other mistakes
of the model reach the client as the model wrote them.
"""

from __future__ import annotations

from collections.abc import Container

from tessera.language.parsers.scanner import END, Scanner, Sink, Steps

ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PAIRS = {"{": "}", "[": "]"}


class JsonCalls(Scanner):
    """A scanner that can read calls and JSON values."""

    def call_object(self, known: Container[str] | None = None) -> Steps[bool]:
        """Read a call from its opening brace on.

        Once its name and its arguments have begun, the object is a call, and ends where its structure breaks. Before
        that, the caller may give the text back.

        Args:
            known: names that a call may have; None allows all names.

        Returns:
            Whether the object was a call.
        """
        if not (yield from self.accept("{")):
            return False
        name: str | None = None
        index: int | None = None
        early: list[str] | None = None
        complete = False
        while True:
            yield from self.space()
            if (yield from self.accept("}")):
                complete = True
                break
            key = yield from self.string()
            yield from self.space()
            if key is None or not (yield from self.accept(":")):
                break
            yield from self.space()
            if key == "name" and name is None:
                name = yield from self.string()
                if not name or (known is not None and name not in known):
                    return False
                fine = True
                if early is not None:
                    index = self.begin_call(name)
                    self.argument_sink(index)("".join(early))
            elif key in ARGUMENT_KEYS and index is None and early is None:
                if name is not None:
                    index = self.begin_call(name)
                    sink = self.argument_sink(index)
                else:
                    early = []
                    sink = early.append
                fine = yield from self.arguments(sink)
            else:
                fine = yield from self.value(lambda _: None)
            if not fine:
                break
            yield from self.space()
            if not (yield from self.accept(",")):
                complete = yield from self.accept("}")
                break
        if index is None and name is not None and complete:
            index = self.begin_call(name)
            self.argument_sink(index)("{}")
        if index is None:
            return False
        self.end_call(index)
        return True

    def arguments(self, sink: Sink) -> Steps[bool]:
        """Read the arguments of a call: JSON, or JSON inside a string, which some models write."""
        character = yield from self.peek()
        if character == '"':
            yield from self.take()
            return (yield from self._characters(sink))
        if character in _PAIRS:
            return (yield from self.value(sink))
        scalar: list[str] = []
        fine = yield from self.value(scalar.append)
        text = "".join(scalar)
        sink("{}" if text in {"null", "None"} else text)
        return fine

    def value(self, sink: Sink) -> Steps[bool]:
        """Pass a JSON value on as it is written. False when its structure breaks; what breaks it is not taken."""
        closers: list[str] = []
        some = False
        while True:
            character = yield from self.take()
            if character == '"':
                sink(character)
                if not (yield from self._string_as_written(sink)):
                    return False
            elif character in _PAIRS:
                closers.append(_PAIRS[character])
                sink(character)
            elif closers and character == closers[-1]:
                closers.pop()
                sink(character)
            elif character.isalnum() or (character and character in "+-._"):
                sink(character)
                some = True
                if not closers:
                    continue
            elif closers and (character.isspace() or (character and character in ",:")):
                sink(character)
                continue
            else:
                self.unread(character)
                return some and not closers
            if not closers:
                return True

    def string(self) -> Steps[str | None]:
        """Read a string and return its text; None when there is no string, or when it does not end."""
        if not (yield from self.accept('"')):
            return None
        parts: list[str] = []
        fine = yield from self._characters(parts.append)
        return "".join(parts) if fine else None

    def _string_as_written(self, sink: Sink) -> Steps[bool]:
        while (character := (yield from self.take())) != END:
            sink(character)
            if character == '"':
                return True
            if character == "\\":
                sink((yield from self.take()))
        return False

    def _characters(self, sink: Sink) -> Steps[bool]:
        """Pass on the unescaped text of a string behind its opening quotation mark. False when the string does not
        end."""
        high = ""
        while (character := (yield from self.take())) != END:
            if character == '"':
                sink(high)
                return True
            if character == "\\":
                escape = yield from self.take()
                character = _ESCAPES.get(escape, escape)
                if escape == "u":
                    character = yield from self._code_unit()
            if high and "\udc00" <= character <= "\udfff":
                character = (high + character).encode("utf-16", "surrogatepass").decode("utf-16")
            else:
                sink("\ufffd" if high else "")
            high = character if "\ud800" <= character <= "\udbff" else ""
            if not high:
                sink("\ufffd" if "\udc00" <= character <= "\udfff" else character)
        return False

    def _code_unit(self) -> Steps[str]:
        digits = ""
        while len(digits) < 4:
            character = yield from self.take()
            if character not in "0123456789abcdefABCDEF" or character == END:
                self.unread(character)
                return "u" + digits
            digits += character
        return chr(int(digits, 16))
