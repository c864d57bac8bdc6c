"""Bounds the digits of numbers in JSON answers: a model that loves digits would go on with them for ever.

A JSON schema bounds the digits of an integer only by `minimum` and `maximum`, and those of a fraction not at all. Where
the grammar would also let the number end, tokens that go on with digits beyond `MOST_DIGITS` are masked; where it
leaves nothing but digits (a `const`, a large `minimum`), they stay. Digits in strings are not concerned. Works on the
bytes of tokens, so it is the same for every library and for all JSON in a grammar, such as arguments of tool calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from tessera.sequence.grammar.matcher import Matcher, pack_mask
from tessera.sequence.grammar.queue import Compiler
from tessera.wire.engine import Grammar

MOST_DIGITS = 20
"""Most digits in a row before or behind the point: every signed or unsigned integer of 64 bits has at most 20, and a
double is exact with 17 significant digits, which leaves three zeros behind the point."""
MOST_EXPONENT_DIGITS = 3
"""Most digits of an exponent: those of a double lie between -324 and 308."""
_DIGITS = frozenset(b"0123456789")
_QUOTE, _ESCAPE = b'"\\'
_EXPONENT = frozenset(b"eE")
_SIGNS = frozenset(b"+-")


@dataclass(frozen=True)
class JsonPlace:
    """What the bytes so far say about the next one.

    Attributes:
        in_string: Whether the text is within a string.
        escaped: Whether the last byte was the backslash of an escape.
        digits: Digits in a row up to here, outside of strings.
        exponent: Whether they are an exponent's, or would be.
    """

    in_string: bool = False
    escaped: bool = False
    digits: int = 0
    exponent: bool = False

    @property
    def room(self) -> int | None:
        """Digits that may follow; None where there is no bound."""
        if self.in_string:
            return None
        return max(0, (MOST_EXPONENT_DIGITS if self.exponent else MOST_DIGITS) - self.digits)

    def behind(self, text: bytes) -> JsonPlace:
        """Return the place behind some more bytes."""
        in_string, escaped, digits, exponent = self.in_string, self.escaped, self.digits, self.exponent
        for byte in text:
            if in_string:
                in_string = escaped or byte != _QUOTE
                escaped = not escaped and byte == _ESCAPE
                continue
            if byte in _DIGITS:
                digits += 1
                continue
            # Only behind a digit is an `e` an exponent's; `true` and `false` have one, too.
            exponent = (byte in _EXPONENT and digits > 0) or (byte in _SIGNS and exponent and digits == 0)
            in_string, digits = byte == _QUOTE, 0
        return JsonPlace(in_string, escaped, digits, exponent)


class LeadingDigits:
    """Tokens of a vocabulary by the number of digits that they begin with.

    Args:
        tokens: Bytes of each id.
    """

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens

    @cached_property
    def _counts(self) -> torch.Tensor:
        counts = [len(text) - len(text.lstrip(b"0123456789")) for text in self.tokens]
        return torch.tensor(counts, dtype=torch.int64)

    @cached_property
    def longest(self) -> int:
        """Most digits that a token begins with."""
        return int(self._counts.max())

    @cached_property
    def _within(self) -> dict[int, torch.Tensor]:
        return {}

    def within(self, room: int) -> torch.Tensor:
        """Return the mask, int32 words, of the tokens that begin with at most `room` digits."""
        if room not in self._within:
            vocabulary = len(self.tokens)
            allowed = torch.zeros(-(-vocabulary // 32) * 32, dtype=torch.int64)
            allowed[:vocabulary] = self._counts <= room
            self._within[room] = pack_mask(allowed[None])[0]
        return self._within[room]


class DigitBoundMatcher:
    """A matcher of JSON whose numbers end; implements `Matcher`.

    Args:
        inner: Matcher of the grammar.
        leading: Of the model's vocabulary.
    """

    def __init__(self, inner: Matcher, leading: LeadingDigits) -> None:
        self._inner = inner
        self._leading = leading
        self._places = [JsonPlace()]
        """Place behind each accepted token."""

    @property
    def ended(self) -> bool:
        """Whether a stop token was accepted."""
        return self._inner.ended

    def fill_mask(self, mask_RW: torch.Tensor, row: int) -> None:
        """Fill a row of the mask as `Matcher.fill_mask` says."""
        self._inner.fill_mask(mask_RW, row)
        room = self._places[-1].room
        if room is not None and room < self._leading.longest:
            bounded_W = mask_RW[row] & self._leading.within(room)
            if bounded_W.any():
                mask_RW[row] = bounded_W

    def accept(self, token: int) -> bool:
        """Accept a token as `Matcher.accept` says."""
        if not self._inner.accept(token):
            return False
        text = self._leading.tokens[token] if token < len(self._leading.tokens) else b""
        self._places.append(self._places[-1].behind(text))
        return True

    def forced(self) -> list[int]:
        """Return the forced tokens as `Matcher.forced` says: they are all that the grammar allows, digits or not."""
        return self._inner.forced()

    def rollback(self, count: int) -> None:
        """Take tokens back as `Matcher.rollback` says."""
        if count:
            self._inner.rollback(count)
            del self._places[-count:]


class DigitBoundCompiler:
    """Compiles grammars whose JSON has bounded numbers.

    Args:
        inner: Compiles the grammars.
        tokens: Bytes of each id of the model.
    """

    def __init__(self, inner: Compiler, tokens: list[bytes]) -> None:
        self.inner = inner
        self._leading = LeadingDigits(tokens)

    def compile(self, grammar: Grammar) -> Callable[[], Matcher]:
        """Compile as `Compiler.compile` says."""
        make = self.inner.compile(grammar)
        if grammar.kind not in {"json_schema", "calls", "calls_or_json"}:
            return make
        return lambda: DigitBoundMatcher(make(), self._leading)
