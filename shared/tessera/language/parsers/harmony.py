"""gpt-oss: messages with a channel and perhaps a recipient, as `<|channel|>analysis<|message|>…<|end|><|start|>…`.

`analysis` is reasoning, `final` and `commentary` are content, and a message to the recipient `functions.x` is a call of
x. The prompt has written `<|start|>assistant` already. Source: OpenAI's harmony response format.
"""

from __future__ import annotations

import re

from tessera.language.parsers.events import Thought
from tessera.language.parsers.scanner import END, Scanner, Steps

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
FINAL = f"{CHANNEL}final{MESSAGE}"
"""How the answer itself begins."""
MARKERS = (START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS)
MOST_HEADER = 512
"""Most characters of a message's header."""
_RECIPIENT = re.compile(r"\bto=(?P<recipient>[^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(?P<channel>\w+)")


class Harmony(Scanner):
    """Parses the messages of an answer."""

    openings = (START, CHANNEL, MESSAGE)

    def read(self) -> Steps[None]:
        """Read the answer; what is left when this returns is content."""
        started = False
        while True:
            self.remember("", framed=started)
            started = True
            header = yield from self._header()
            if header is None:
                self.give_back()
                return
            self._memory = None
            yield from self._body(header)
            yield from self.space()
            if not (yield from self.accept(START)):
                if (yield from self.peek()) == END:
                    return
                # Text outside of any message is shown as content, so that it is not lost.
                yield from self.until((START,), self.content, trim=True)

    def _header(self) -> Steps[str | None]:
        header = ""
        while len(header) < MOST_HEADER:
            character = yield from self.take()
            if character == END:
                return None
            header += character
            if header.endswith(MESSAGE):
                return header
        return None

    def _body(self, header: str) -> Steps[None]:
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        ends = (*ENDS, START)
        if recipient is not None and recipient["recipient"].startswith("functions."):
            index = self.begin_call(recipient["recipient"].removeprefix("functions."))
            sink = self.argument_sink(index)
            if (yield from self.peek()) in ({"<"} if self.is_cut else {END, "<"}):
                sink("{}")
            marker, _ = yield from self.until(ends, sink, trim=True)
            self.end_call(index)
        elif recipient is not None or (channel is not None and channel["channel"] == "analysis"):
            marker, _ = yield from self.until(ends, lambda text: self.emit(Thought(text)), trim=False)
        else:
            marker, _ = yield from self.until(ends, self.content, trim=False)
        if marker == START:
            self.unread(START)
