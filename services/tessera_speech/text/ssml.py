"""A parser of the part of SSML that the synthesizers support: `break`, `prosody` with `rate`, `say-as`, `sub`, `p`,
`s`, and `phoneme` where the model reads phonemes.

Errors name line and column of what is malformed or not supported. Nothing outside the text is ever read: documents with
a DOCTYPE are refused. Source: Speech Synthesis Markup Language 1.1. Knows nothing about models.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat

from tessera.errors import InvalidRequestError
from tessera_speech.text.say_as import INTERPRETATIONS, say_as_words

MAX_PAUSE_S = 10.0
"""Most seconds of one `break`."""
MAX_TOTAL_PAUSE_S = 60.0
"""Most seconds of all breaks of a document."""
MAX_DEPTH = 32
"""Most elements that are nested in each other."""
MIN_RATE, MAX_RATE = 0.2, 5.0
"""Least and largest factor of the speed, nested `prosody` elements multiplied."""

_STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7, "x-strong": 1.2}
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.5, "x-fast": 2.0}
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{1,6})?)(ms|s)")
_PERCENT = re.compile(r"([+-]?)(\d{1,4}(?:\.\d{1,4})?)%")
_FACTOR = re.compile(r"\d{1,2}(?:\.\d{1,4})?")
_ATTRIBUTES = {
    "speak": {"version", "xmlns", "xml:lang", "xmlns:xsi", "xsi:schemaLocation"},
    "p": set(),
    "s": set(),
    "break": {"time", "strength"},
    "prosody": {"rate"},
    "say-as": {"interpret-as", "format", "detail"},
    "sub": {"alias"},
    "phoneme": {"ph", "alphabet"},
}
ALPHABETS = ("ipa", "x-arpabet")
_TEXT_ONLY = ("say-as", "sub", "phoneme")
_STANDS_FOR = "word"
"""Stands for a word with phonemes, so that no rule of normalization applies to it."""
PhonemeReading = Callable[[str, str], list[str]]
"""(phonemes, alphabet) → the model's names of them; raises ValueError that says what is wrong."""
_SPACE = re.compile(r"\s+")


@dataclass
class Script:
    """A text and how to speak it. Lists are in order, and their spans do not overlap.

    Attributes:
        text: the text without markup.
        rates: (begin, end, factor) of characters whose speed is multiplied.
        replacements: (begin, end, words) of characters that are spoken as other words.
        pauses: (place, seconds) where sentences are split; the seconds of silence may be 0.
        sounds: phonemes of some of the replacements, by their (begin, end).
    """

    text: str = ""
    rates: list[tuple[int, int, float]] = field(default_factory=list)
    replacements: list[tuple[int, int, str]] = field(default_factory=list)
    pauses: list[tuple[int, float]] = field(default_factory=list)
    sounds: dict[tuple[int, int], list[str]] = field(default_factory=dict)


def is_ssml(text: str) -> bool:
    """Whether a text is SSML: it begins with a `speak` element."""
    return re.match(r"\s*(<\?xml[^>]*>\s*)?<speak[\s/>]", text) is not None


def parse(text: str, phonemes: PhonemeReading | None = None) -> Script:
    """Parse an SSML document.

    Args:
        text: the document.
        phonemes: reads the phonemes of a `phoneme` element; without it the element is not supported.

    Raises:
        InvalidRequestError: the document is malformed or has an unsupported element; names line and column.
    """
    reader = _SSMLParser(text, phonemes)
    reader.read()
    return reader.script


class _SSMLParser:
    def __init__(self, text: str, phonemes: PhonemeReading | None) -> None:
        self._phonemes = phonemes
        self.script = Script()
        self._source = text
        self._lines = text.encode("utf-8", "replace").split(b"\n")
        self._open: list[tuple[str, dict[str, str]]] = []
        self._rates = [1.0]
        self._element_text: list[str] = []
        self._given_sounds: list[str] = []
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._doctype

    def read(self) -> None:
        try:
            self._parser.Parse(self._source.encode("utf-8", "replace"), True)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise self._at(error.lineno, error.offset, f"malformed SSML: {reason}") from error

    def _error(self, reason: str) -> InvalidRequestError:
        return self._at(self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber, reason)

    def _at(self, line: int, column: int, reason: str) -> InvalidRequestError:
        """The error at a place. `column` counts bytes from 0; the message counts characters from 1."""
        before = self._lines[line - 1][:column] if line <= len(self._lines) else b""
        place = len(before.decode("utf-8", "ignore")) + 1
        return InvalidRequestError(
            f"`input`, line {line}, column {place}: {reason}", param="input", code="invalid_ssml"
        )

    def _doctype(self, *_: object) -> None:
        raise self._error("a DOCTYPE is not allowed in SSML here")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if (name == "speak") != (not self._open):
            raise self._error("`speak` is the outermost element, once")
        if name == "phoneme" and self._phonemes is None:
            raise self._error(
                "`phoneme` needs a model that reads phonemes; this one reads letters: write the word as it sounds, or "
                'use <sub alias="…">'
            )
        if name not in _ATTRIBUTES:
            known = [known for known in _ATTRIBUTES if known != "phoneme" or self._phonemes is not None]
            raise self._error(f"`{name}` is not supported; there are {', '.join(known)}")
        for attribute in attributes:
            if attribute not in _ATTRIBUTES[name]:
                allowed = ", ".join(sorted(_ATTRIBUTES[name])) or "none"
                raise self._error(f"`{name}` has no attribute `{attribute}` here; it has: {allowed}")
        if self._open and self._open[-1][0] in _TEXT_ONLY:
            raise self._error(f"`{self._open[-1][0]}` holds text alone, not `{name}`")
        if len(self._open) >= MAX_DEPTH:
            raise self._error(f"elements are nested deeper than {MAX_DEPTH}")
        self._open.append((name, attributes))
        if name == "break":
            self._pause(self._seconds(attributes))
        elif name == "prosody":
            self._rates.append(self._rates[-1] * self._rate(attributes.get("rate", "medium")))
            if not MIN_RATE <= self._rates[-1] <= MAX_RATE:
                raise self._error(f"`rate` must come to {MIN_RATE} to {MAX_RATE} times")
        elif name in {"p", "s"}:
            self._pause(0.0)
        elif name == "say-as" and attributes.get("interpret-as") not in INTERPRETATIONS:
            raise self._error(f"`interpret-as` must be one of {', '.join(INTERPRETATIONS)}")
        elif name == "phoneme":
            self._given_sounds = self._sounds(attributes)
        elif name == "sub" and not attributes.get("alias", "").strip():
            raise self._error("`sub` needs an `alias`: what is said instead")

    def _end(self, name: str) -> None:
        _, attributes = self._open.pop()
        if name == "prosody":
            self._rates.pop()
        elif name in {"p", "s"}:
            self._pause(0.0)
        elif name in _TEXT_ONLY:
            written = "".join(self._element_text).strip()
            self._element_text = []
            self._read(name, attributes, written)

    def _read(self, name: str, attributes: dict[str, str], written: str) -> None:
        if not written:
            raise self._error(f"`{name}` is empty")
        replacement = attributes.get("alias", "")
        if name == "say-as":
            found = say_as_words(written, attributes["interpret-as"], attributes.get("format", ""))
            if found is None:
                raise self._error(f"{written!r} cannot be read as `{attributes['interpret-as']}`")
            replacement = found
        begin = len(self.script.text)
        self._write(written)
        end = len(self.script.text)
        if name == "phoneme":
            replacement = _STANDS_FOR
            self.script.sounds[begin, end] = self._given_sounds
        self.script.replacements.append((begin, end, replacement))

    def _sounds(self, attributes: dict[str, str]) -> list[str]:
        assert self._phonemes is not None
        alphabet = attributes.get("alphabet", "ipa")
        if alphabet not in ALPHABETS:
            raise self._error(f"`alphabet` must be one of {', '.join(ALPHABETS)}")
        try:
            return self._phonemes(attributes.get("ph", ""), alphabet)
        except ValueError as error:
            raise self._error(f"`ph` is {attributes.get('ph', '')!r}: {error}") from error

    def _characters(self, data: str) -> None:
        if self._open and self._open[-1][0] in _TEXT_ONLY:
            self._element_text.append(data)
        elif self._open and self._open[-1][0] == "break" and data.strip():
            raise self._error("`break` is empty: write it as <break/>")
        else:
            self._write(data)

    def _write(self, data: str) -> None:
        """Append text; every run of white space, line ends included, becomes one space."""
        text = _SPACE.sub(" ", data)
        if self.script.text.endswith(" "):
            text = text.removeprefix(" ")
        begin = len(self.script.text)
        self.script.text += text
        if text and self._rates[-1] != 1.0:
            self.script.rates.append((begin, len(self.script.text), self._rates[-1]))

    def _pause(self, seconds: float) -> None:
        self.script.pauses.append((len(self.script.text), seconds))
        if sum(each for _, each in self.script.pauses) > MAX_TOTAL_PAUSE_S:
            raise self._error(f"all breaks together may last {MAX_TOTAL_PAUSE_S:.0f} s")

    def _seconds(self, attributes: dict[str, str]) -> float:
        if "time" not in attributes:
            strength = attributes.get("strength", "medium")
            if strength not in _STRENGTHS:
                raise self._error(f"`strength` must be one of {', '.join(_STRENGTHS)}")
            return _STRENGTHS[strength]
        match = _TIME.fullmatch(attributes["time"].strip())
        if match is None:
            raise self._error(f"`time` is {attributes['time']!r}; write it as 500ms or 1.5s")
        seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
        if seconds > MAX_PAUSE_S:
            raise self._error(f"a break may last {MAX_PAUSE_S:.0f} s")
        return seconds

    def _rate(self, text: str) -> float:
        text = text.strip()
        if text in _RATES:
            return _RATES[text]
        if match := _PERCENT.fullmatch(text):
            part = float(match[2]) / 100
            return {"": part, "+": 1 + part, "-": 1 - part}[match[1]]
        if _FACTOR.fullmatch(text):
            return float(text)
        raise self._error(f"`rate` is {text!r}; write it as slow, fast, 80%, +20% or 1.2")
