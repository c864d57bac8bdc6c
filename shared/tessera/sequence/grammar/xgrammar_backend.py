"""Grammars through xgrammar: pushdown automata, compiled in milliseconds, a mask in microseconds.

xgrammar supports a part of JSON Schema and ignores the rest in silence, so `schemas` rewrites or refuses what it would
not enforce. Knows nothing about time limits: see `queue`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import xgrammar

from tessera.errors import InvalidRequestError
from tessera.sequence.grammar.matcher import Matcher
from tessera.sequence.grammar.schemas import check_pattern, narrow_schema
from tessera.sequence.grammar.vocabulary import Vocabulary
from tessera.wire.engine import Grammar

MAX_WHITESPACE = 20
"""Most characters of whitespace in one place of a JSON text: small models can go on with spaces for ever."""


class XgrammarCompiler:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._by_markers: dict[tuple[str, ...], xgrammar.GrammarCompiler] = {}

    def compile(self, grammar: Grammar) -> Callable[[], Matcher]:
        """Return a factory of matchers of `grammar`.

        Raises:
            InvalidRequestError: The grammar cannot be compiled; names its field and says why.
            UnsupportedSchemaError: The grammar is valid, but this library would not enforce it.
        """
        try:
            compiled = self._compiled(self._compiler(tuple(grammar.markers)), grammar)
            matcher = xgrammar.GrammarMatcher(compiled)
            mask_1W = torch.zeros(1, -(-len(self._vocabulary.tokens) // 32), dtype=torch.int32)
            matcher.fill_next_token_bitmask(mask_1W, 0)
        except (RuntimeError, ValueError) as error:
            raise InvalidRequestError(
                f"`{grammar.param}` cannot be compiled: {_reason(error)}", param=grammar.param
            ) from error
        if not mask_1W.any():
            raise InvalidRequestError(f"`{grammar.param}`: no text can satisfy it", param=grammar.param)
        # A grammar in EBNF may go on for ever without a choice, and the library would look for the end of that.
        forces = grammar.kind != "ebnf"
        return lambda: XgrammarMatcher(xgrammar.GrammarMatcher(compiled), self._vocabulary, forces=forces)

    def _compiler(self, markers: tuple[str, ...]) -> xgrammar.GrammarCompiler:
        if markers not in self._by_markers:
            info = xgrammar.TokenizerInfo(
                self._vocabulary.with_markers(list(markers)),
                vocab_size=len(self._vocabulary.tokens),
                stop_token_ids=self._vocabulary.stop_ids,
            )
            # The library's own cache is off: `GrammarQueue` has one with a known limit.
            self._by_markers[markers] = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        return self._by_markers[markers]

    def _compiled(self, compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> xgrammar.CompiledGrammar:
        if grammar.kind == "json_schema":
            schema = json.dumps(narrow_schema(json.loads(grammar.source), grammar.param))
            return compiler.compile_json_schema(schema, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE)
        if grammar.kind == "regex":
            check_pattern(grammar.source, grammar.param)
            return compiler.compile_regex(grammar.source)
        if grammar.kind == "ebnf":
            return compiler.compile_grammar(grammar.source)
        if grammar.kind == "choice":
            choices = " | ".join(json.dumps(text) for text in json.loads(grammar.source))
            return compiler.compile_grammar(f"root ::= {choices}")
        return compiler.compile_structural_tag(_calls(json.loads(grammar.source), grammar.param))


def _calls(calls: dict[str, Any], param: str) -> dict[str, Any]:
    """Return the grammar of one or more tool calls, or of JSON instead, as xgrammar's structural tag."""
    tags = [
        {"type": "tag", "begin": call["begin"], "content": _json(call["schema"], param), "end": call["end"]}
        for call in calls["calls"]
    ]
    several = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": calls["separator"],
        "at_least_one": True,
        "stop_after_first": calls["most"] == 1,
    }
    called = _sequence([*_text(calls["begin"]), several, *_text(calls["end"])])
    answer = calls.get("answer")
    if answer is None:
        return {"type": "structural_tag", "format": called}
    answered = _sequence([*_text(answer["begin"]), _json(answer["schema"], param)])
    return {"type": "structural_tag", "format": {"type": "or", "elements": [called, answered]}}


def _json(schema: Any, param: str) -> dict[str, Any]:
    narrow = narrow_schema(schema, param)
    return {"type": "json_schema", "json_schema": narrow, "max_whitespace_cnt": MAX_WHITESPACE}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "const_string", "value": text}] if text else []


def _sequence(elements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "sequence", "elements": elements}


def _reason(error: Exception) -> str:
    """Return the library's message without the place in its source code."""
    text = str(error).strip()
    return text.partition(".cc:")[2].partition(": ")[2][:500] if ".cc:" in text else text[:500]


class XgrammarMatcher:
    """The state of one request in its grammar; implements `Matcher`."""

    def __init__(self, inner: xgrammar.GrammarMatcher, vocabulary: Vocabulary, *, forces: bool) -> None:
        self._inner = inner
        self._forces = forces
        self._vocabulary = vocabulary

    @property
    def ended(self) -> bool:
        """Whether a stop token was accepted."""
        return bool(self._inner.is_terminated())

    def fill_mask(self, mask_RW: torch.Tensor, row: int) -> None:
        """Fill a row of the mask as `Matcher.fill_mask` says."""
        if self.ended:
            mask_RW[row] = 0
        else:
            self._inner.fill_next_token_bitmask(mask_RW, row)

    def accept(self, token: int) -> bool:
        """Accept a token as `Matcher.accept` says."""
        return not self.ended and bool(self._inner.accept_token(token))

    def forced(self) -> list[int]:
        """Return the forced tokens as `Matcher.forced` says."""
        if self.ended or not self._forces:
            return []
        try:
            text = self._inner.find_jump_forward_string()
        except UnicodeDecodeError as error:  # the forced bytes end within a character
            text = error.object[: error.start].decode()
        # The tokenizer might merge the last token with text that is not known yet.
        return self._vocabulary.tokenize(text)[:-1] if text else []

    def rollback(self, count: int) -> None:
        """Take tokens back as `Matcher.rollback` says."""
        if count:
            self._inner.rollback(count)
