"""How a model writes reasoning and tool calls: its dialect, found from its chat template and control tokens.

Knows the name of each dialect, its parser, and the grammar that enforces a call in it. Settings may choose another one.
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
from tessera.wire.engine import Grammar
from tessera.wire.tools import Tool

# What opens and what closes reasoning.
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
    """Splits the text of one answer into events."""

    def push(self, text: str) -> list[Event]:
        """Add text; returns the events that are certain after it."""
        ...

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The events that were held back, when no more text comes; `cut` says that the model would have gone on."""
        ...


@dataclass(frozen=True)
class Dialect:
    """How one model writes reasoning and tool calls.

    Attributes:
        calls: the format of tool calls. Models that know none get `hermes`, which a system message then explains.
        thinking: what opens and what closes reasoning; None for a model that writes none, or uses harmony's channels.
        described: whether a system message has to describe the tools, because the template takes none.
    """

    calls: ToolParser
    thinking: tuple[str, str] | None
    described: bool

    @classmethod
    def of(cls, template: str, control: tuple[str, ...], *, takes_tools: bool) -> Dialect:
        """Find the dialect of a model.

        Args:
            template: the source of its chat template; may be empty.
            control: its tokenizer's control tokens.
            takes_tools: whether the template takes tools.
        """
        if "<|channel|>" in template and "<|message|>" in template:
            return cls("harmony", None, not takes_tools)
        thinking = THINK if "</think>" in template or "</think>" in control else None
        if "[/THINK]" in template or "[/THINK]" in control:
            thinking = MISTRAL_THINK
        return cls(_calls_of(template, control), thinking, not takes_tools)

    def overridden(self, tools: ToolParser, reasoning: ReasoningParser) -> Dialect:
        """The dialect with the settings' choices in place of `auto`."""
        calls = self.calls if tools == "auto" else tools
        thinking = {"auto": self.thinking, "none": None, "think": THINK, "mistral": MISTRAL_THINK}[reasoning]
        return replace(self, calls=calls, thinking=thinking)

    def markers(self, *, tools: bool) -> tuple[str, ...]:
        """The markers that the parser must see as text, even where they are control tokens.

        Args:
            tools: whether the request has tools.
        """
        markers: tuple[str, ...] = self.thinking or ()
        if tools or self.calls == "harmony":
            markers += _MARKERS[self.calls.removesuffix("_fenced")]
        return markers

    def parser(self, tools: list[Tool], *, opened: bool) -> AnswerParser:
        """The parser of one answer.

        Args:
            tools: of the request.
            opened: whether the prompt has opened the reasoning.
        """
        schemas = {tool.function.name: tool.function.parameters for tool in tools}
        rest: Scanner = Plain()
        if self.calls == "harmony":
            rest = Harmony()
        elif schemas:
            rest = self._calls(schemas)
        return rest if self.thinking is None else ThinkingFirst(Thoughts(*self.thinking, opened=opened), rest)

    def enforced(self, tools: list[Tool], *, one: bool, answer: Grammar | None = None) -> str:
        """The source of a grammar of kind `calls`, which forces at least one call; or of kind `calls_or_json`.

        Args:
            tools: those that may be called.
            one: whether exactly one call is made.
            answer: the JSON, by its schema, that the model may answer instead of calls; None if it has to call.
        """
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
        source: dict[str, Any] = {"begin": begin, "calls": calls, "separator": separator, "end": end, "most": most}
        if answer is not None:
            before = harmony.FINAL if self.calls == "harmony" else ""
            source["answer"] = {"begin": before, "schema": json.loads(answer.source), "param": answer.param}
        return json.dumps(source)

    def example(self) -> str:
        """An example of a call, for the system message that describes tools."""
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
