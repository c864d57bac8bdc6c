"""How a model writes thoughts and tool calls: told by its chat template and its control tokens, or by the settings.

Knows each way's name, its reader, and the grammar that enforces a call in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tessera.language.parsers import deepseek, harmony, hermes, llama, mistral
from tessera.language.parsers.deepseek import DeepSeek
from tessera.language.parsers.events import Event
from tessera.language.parsers.harmony import Harmony
from tessera.language.parsers.hermes import Hermes
from tessera.language.parsers.llama import Llama
from tessera.language.parsers.mistral import Mistral
from tessera.language.parsers.plain import Plain
from tessera.language.parsers.scanner import Scanner
from tessera.language.parsers.thinking import ThinkingFirst, Thoughts
from tessera.settings.sequence import ReasoningParser, ToolParser
from tessera.wire.tools import Tool

THINK = ("<think>", "</think>")
MISTRAL_THINK = ("[THINK]", "[/THINK]")
_MARKERS: Mapping[str, tuple[str, ...]] = {
    "hermes": (hermes.BEGIN, hermes.END_TAG),
    "llama": (llama.TAG,),
    "mistral": (mistral.BEGIN, mistral.CALL_ID, mistral.ARGS),
    "mistral_list": (mistral.BEGIN,),
    "deepseek": (deepseek.CALLS_BEGIN, deepseek.CALLS_END, deepseek.CALL_BEGIN, deepseek.CALL_END, deepseek.SEPARATOR),
    "harmony": harmony.MARKERS,
}


class AnswerParser(Protocol):
    """What reads one answer's text."""

    def push(self, text: str) -> list[Event]:
        """What is certain after `text`."""
        ...

    def finish(self) -> list[Event]:
        """The rest, when no more comes."""
        ...


@dataclass(frozen=True)
class Dialect:
    """One model's way.

    Attributes:
        calls: the way of tool calls; `hermes` for models that know none, which are told how to.
        thinking: what opens and closes a thought.
        described: whether tools have to be described in a system message, because the template takes none.
    """

    calls: ToolParser
    thinking: tuple[str, str] | None
    described: bool

    @classmethod
    def of(cls, template: str, control: tuple[str, ...], *, takes_tools: bool) -> Dialect:
        """The dialect that a chat template and the tokenizer's control tokens show."""
        if "<|channel|>" in template and "<|message|>" in template:
            return cls("harmony", None, not takes_tools)
        thinking = THINK if "</think>" in template or "</think>" in control else None
        if "[/THINK]" in template or "[/THINK]" in control:
            thinking = MISTRAL_THINK
        return cls(_calls_of(template, control), thinking, not takes_tools)

    def overridden(self, tools: ToolParser, reasoning: ReasoningParser) -> Dialect:
        """The dialect with what the settings say instead."""
        calls = self.calls if tools == "auto" else tools
        thinking = {"auto": self.thinking, "none": None, "think": THINK, "mistral": MISTRAL_THINK}[reasoning]
        return replace(self, calls=calls, thinking=thinking)

    def markers(self, *, tools: bool) -> tuple[str, ...]:
        """Control tokens that its reader must see; those that are no control tokens are text anyway."""
        found: tuple[str, ...] = self.thinking or ()
        if tools or self.calls == "harmony":
            found += _MARKERS[self.calls.removesuffix("_fenced")]
        return found

    def reader(self, tools: list[Tool], *, opened: bool) -> AnswerParser:
        """What reads an answer to a request with `tools`, `opened` when the prompt has begun a thought."""
        schemas = {tool.function.name: tool.function.parameters for tool in tools}
        rest: Scanner = Plain()
        if self.calls == "harmony":
            rest = Harmony()
        elif schemas:
            rest = self._calls(schemas)
        return rest if self.thinking is None else ThinkingFirst(Thoughts(*self.thinking, opened=opened), rest)

    def enforced(self, tools: list[Tool], *, one: bool) -> str:
        """The source of a grammar (`calls`) by which at least one of `tools` is called; `one`: just one."""
        begin, separator, end = "", "\n", ""
        if self.calls == "mistral_list":
            begin, separator, end = f"{mistral.BEGIN} [", ", ", "]"
        elif self.calls == "llama":
            separator = "; "
        elif self.calls == "mistral":
            separator = ""
        elif self.calls.startswith("deepseek"):
            begin, end = deepseek.CALLS_BEGIN, deepseek.CALLS_END
        calls = [self._written(tool.function.name, tool.function.parameters) for tool in tools]
        most = 1 if one or self.calls == "harmony" else None
        return json.dumps({"begin": begin, "calls": calls, "separator": separator, "end": end, "most": most})

    def example(self) -> str:
        """A call as the model should write it."""
        call = self._written("function_name", None)
        around = json.loads(self.enforced([], one=True))
        return f'{around["begin"]}{call["begin"]}{{"argument": "value"}}{call["end"]}{around["end"]}'

    def _calls(self, schemas: dict[str, Any]) -> Scanner:
        if self.calls == "llama":
            return Llama(schemas)
        if self.calls.startswith("mistral"):
            return Mistral()
        return DeepSeek() if self.calls.startswith("deepseek") else Hermes(schemas)

    def _written(self, name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
        quoted = json.dumps(name)
        opening, closing = f'{{"name": {quoted}, "arguments": ', "}"
        if self.calls == "hermes":
            opening, closing = f"{hermes.BEGIN}\n{opening}", f"}}\n{hermes.END_TAG}"
        elif self.calls == "llama":
            opening = f'{{"name": {quoted}, "parameters": '
        elif self.calls == "mistral":
            opening, closing = f"{mistral.BEGIN}{name}{mistral.ARGS}", ""
        elif self.calls == "deepseek":
            opening, closing = f"{deepseek.CALL_BEGIN}{name}{deepseek.SEPARATOR}", deepseek.CALL_END
        elif self.calls == "deepseek_fenced":
            opening = f"{deepseek.CALL_BEGIN}function{deepseek.SEPARATOR}{name}\n```json\n"
            closing = f"\n```{deepseek.CALL_END}"
        elif self.calls == "harmony":
            opening, closing = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", ""
        empty = {"type": "object", "properties": {}, "additionalProperties": False}
        return {"begin": opening, "schema": parameters or empty, "end": closing}


def _calls_of(template: str, control: tuple[str, ...]) -> ToolParser:
    if deepseek.CALLS_BEGIN in template or deepseek.CALLS_BEGIN in control:
        return "deepseek_fenced" if "```json" in template else "deepseek"
    if mistral.BEGIN in template or mistral.BEGIN in control:
        return "mistral" if mistral.ARGS in template or mistral.ARGS in control else "mistral_list"
    if hermes.BEGIN in template:
        return "hermes"
    if llama.TAG in template or llama.TAG in control:
        return "llama"
    return "hermes"
