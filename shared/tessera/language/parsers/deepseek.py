"""DeepSeek V3, R1 and V3.1: calls between control tokens, with arguments in a code fence (V3, R1) or bare (V3.1).

Source: the chat templates of DeepSeek-V3-0324, DeepSeek-R1-0528 and DeepSeek-V3.1.
"""

from __future__ import annotations

from tessera.language.parsers.json_call import JsonCalls
from tessera.language.parsers.scanner import END, Steps

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
MOST_NAME = 256
"""Most characters of a tool's name."""


class DeepSeek(JsonCalls):
    """Parses answers with fenced or bare arguments."""

    openings = (CALLS_BEGIN, CALL_BEGIN)

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        while True:
            marker, space = yield from self.until((CALLS_BEGIN, CALL_BEGIN), self.content, trim=True)
            if marker == END:
                return
            self.remember(space + marker)
            if marker == CALLS_BEGIN:
                yield from self.space()
                if not (yield from self.accept(CALL_BEGIN)):
                    self.give_back()
                    continue
            while (yield from self._call()):
                self.remember("", framed=True)
                yield from self.space()
                if not (yield from self.accept(CALL_BEGIN)):
                    if (yield from self.accept(CALLS_END)):
                        self.remember("")
                    break
            self.give_back()

    def _call(self) -> Steps[bool]:
        """Read a call behind its first token. False when it is none."""
        name = yield from self._line()
        if not (yield from self.accept(SEPARATOR)):
            return False
        fenced = name == "function"
        if fenced:
            name = yield from self._line()
        yield from self.space()
        if fenced and not (yield from self.accept("```json")):
            return False
        yield from self.space()
        if not name or (yield from self.peek()) != "{":
            return False
        index = self.begin_call(name)
        yield from self.value(self.argument_sink(index))
        yield from self._close(fenced=fenced)
        self.end_call(index)
        return True

    def _close(self, *, fenced: bool) -> Steps[None]:
        space = yield from self.space()
        if fenced and (yield from self.accept("```")):
            space = yield from self.space()
        if not (yield from self.close(CALL_END)):
            self.unread(space)

    def _line(self) -> Steps[str]:
        """The text up to a control token or the end of the line."""
        line = ""
        while len(line) < MOST_NAME:
            character = yield from self.take()
            if character in {END, "<", "\n"}:
                self.unread(character)
                break
            line += character
        return line.strip()
