"""Grammars through llguidance: a Rust library that limits its own work per token and supports most of JSON Schema."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llguidance
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tessera.errors import InvalidRequestError
from tessera.sequence.grammar.matcher import Matcher
from tessera.sequence.grammar.schemas import without_unknown_formats
from tessera.sequence.grammar.vocabulary import Vocabulary
from tessera.wire.engine import Grammar

_FORMATS = frozenset(["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"])
_NOTHING = "NoExtension"
"""Part of the library's error where a grammar allows no token at its beginning."""
_LIMITS = {"max_items_in_row": 2000, "step_max_items": 50_000, "max_grammar_size": 500_000}


class LlguidanceCompiler:
    """Compiles grammars for one tokenizer.

    Args:
        directory: Directory with the `tokenizer.json`.
        vocabulary: Bytes of the tokens, control tokens, and ids that end an answer.
    """

    def __init__(self, directory: Path, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(
            str(directory / "tokenizer.json"), n_vocab=len(vocabulary.tokens), eos_token=vocabulary.stop_ids
        )

    def compile(self, grammar: Grammar) -> Callable[[], Matcher]:
        """Return a factory of matchers of `grammar`.

        Raises:
            InvalidRequestError: The grammar cannot be compiled; names its field and says why.
        """
        try:
            source = self._translate(grammar)
        except Exception as error:  # its converter raises a bare Exception for what a user wrote wrong
            reason = str(error)[:500]
            raise InvalidRequestError(f"`{grammar.param}` cannot be compiled: {reason}", param=grammar.param) from error
        first = LLMatcher(self._tokenizer, source, log_level=0, limits=LLParserLimits(**_LIMITS))
        if not first.is_error():
            first.compute_bitmask()
        if first.is_error() and _NOTHING in first.get_error():
            raise InvalidRequestError(f"`{grammar.param}`: no text can satisfy it", param=grammar.param)
        if first.is_error():
            reason = first.get_error().partition("\n")[0][:500]
            raise InvalidRequestError(f"`{grammar.param}` cannot be compiled: {reason}", param=grammar.param)
        return lambda: LlguidanceMatcher(first.deep_copy(), self._vocabulary.stop_ids)

    def _translate(self, grammar: Grammar) -> str:
        """Return a grammar in llguidance's own format."""
        if grammar.kind == "json_schema":
            schema = without_unknown_formats(json.loads(grammar.source), _FORMATS)
            return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON))
        if grammar.kind == "regex":
            return str(LLMatcher.grammar_from_regex(grammar.source))
        if grammar.kind == "ebnf":
            return str(LLMatcher.grammar_from_lark(llguidance.gbnf_to_lark.any_to_lark(grammar.source)))
        if grammar.kind == "choice":
            choices = " | ".join(json.dumps(text) for text in json.loads(grammar.source))
            return str(LLMatcher.grammar_from_lark(f"start: {choices}"))
        return str(LLMatcher.grammar_from_lark(self._calls(json.loads(grammar.source), grammar.markers)))

    def _calls(self, calls: dict[str, Any], markers: list[str]) -> str:
        rules = []
        for index, call in enumerate(calls["calls"]):
            begin, end = self._text(call["begin"], markers), self._text(call["end"], markers)
            rules.append(f"call_{index}: {begin} {_json(call['schema'])} {end}")
        one = " | ".join(f"call_{index}" for index in range(len(rules)))
        more = "" if calls["most"] == 1 else f"({self._text(calls['separator'], markers)} one)*"
        rules.append(f"calls: {self._text(calls['begin'], markers)} one {more} {self._text(calls['end'], markers)}")
        answer = calls.get("answer")
        if answer is not None:
            rules.append(f"answer: {self._text(answer['begin'], markers)} {_json(answer['schema'])}")
        return "\n".join([f"start: {'calls' if answer is None else 'calls | answer'}", f"one: {one}", *rules])

    def _text(self, text: str, markers: list[str]) -> str:
        """Return a text as Lark writes it, with control tokens by their ids."""
        for marker in markers:
            if marker in text and marker in self._vocabulary.control:
                before, _, after = text.partition(marker)
                token = f"<[{self._vocabulary.control[marker]}]>"
                return f"{self._text(before, markers)} {token} {self._text(after, markers)}"
        return json.dumps(text) if text else ""


_JSON = {"whitespace_pattern": r"[ \n\t]{0,20}"}
"""Options of JSON grammars. Whitespace is bounded, because small models can go on with spaces for ever."""


def _json(schema: Any) -> str:
    """Return JSON of a schema as Lark writes it."""
    known = without_unknown_formats(schema, _FORMATS)
    return f"%json {json.dumps(known | {'x-guidance': _JSON})}"


class LlguidanceMatcher:
    """The state of one request in its grammar; implements `Matcher`."""

    def __init__(self, inner: LLMatcher, stop_ids: list[int]) -> None:
        self._inner = inner
        self._stop_ids = frozenset(stop_ids)
        self._stops = 0
        """1 when the last accepted token was a stop token, which the library does not count."""

    @property
    def ended(self) -> bool:
        """Whether a stop token was accepted."""
        return bool(self._stops)

    def fill_mask(self, mask_RW: torch.Tensor, row: int) -> None:
        """Fill a row of the mask as `Matcher.fill_mask` says."""
        if self.ended:
            mask_RW[row] = 0
        else:
            words_W = torch.frombuffer(bytearray(self._inner.compute_bitmask()), dtype=torch.int32)
            mask_RW[row] = words_W[: mask_RW.shape[1]]  # it may end with an empty word

    def accept(self, token: int) -> bool:
        """Accept a token as `Matcher.accept` says."""
        if self._stops:
            return False
        if token in self._stop_ids:
            self._stops = int(self._inner.is_accepting())
            return bool(self._stops)
        return self._inner.validate_tokens([token]) == 1 and bool(self._inner.consume_token(token))

    def forced(self) -> list[int]:
        """Return the forced tokens as `Matcher.forced` says."""
        forced: list[int] = [] if self._stops else self._inner.compute_ff_tokens()
        return list(itertools.takewhile(lambda token: token not in self._stop_ids, forced))

    def rollback(self, count: int) -> None:
        """Take tokens back as `Matcher.rollback` says."""
        if count and self._stops:
            self._stops, count = 0, count - 1
        if count:
            self._inner.rollback(count)
