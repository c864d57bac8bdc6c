"""English text in the words that a reader would say: numbers, money, times, years, symbols, abbreviations.

For synthesizers whose alphabet has letters and a few marks and no digits. What is not known is left as it is. Does not
know a model's alphabet or how words sound.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_ONES = (  # noqa: SIM905 - easier to read
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = ("", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split())  # noqa: SIM905
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_MAX_DIGITS = 15
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MONEY = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}
_PENCE = {"penny": "pence"}
_WHOLE = r"\d{1,3}(?:,\d{3})+|\d+"

_ABBREVIATIONS = {
    "dr.": "doctor",
    "mr.": "mister",
    "mrs.": "missus",
    "ms.": "miss",
    "prof.": "professor",
    "st.": "saint",
    "jr.": "junior",
    "sr.": "senior",
    "vs.": "versus",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "approx.": "approximately",
    "dept.": "department",
    "a.m.": "ay em",
    "p.m.": "pee em",
    "u.s.": "you ess",
    "u.k.": "you kay",
}
_UNITS = {
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "kg": "kilogram",
    "mg": "milligram",
    "ml": "milliliter",
    "ms": "millisecond",
    "gb": "gigabyte",
    "mb": "megabyte",
    "kb": "kilobyte",
    "hz": "hertz",
    "khz": "kilohertz",
    "°c": "degree celsius",
    "°f": "degree fahrenheit",
    "°": "degree",
    "mph": "mile per hour",
    "km/h": "kilometer per hour",
}
_SYMBOLS = {
    "%": " percent",
    "&": " and ",
    "@": " at ",
    "+": " plus ",
    "=": " equals ",
    "#": " number ",
    "°": " degrees",
    "×": " times ",
    "÷": " divided by ",
    "_": " ",
    "/": " slash ",
    "\u2044": " slash ",  # of a fraction
    "*": " ",
    "’": "'",
    "‘": "'",
    "…": ".",
    ";": ",",
    ":": ",",
    "(": ", ",
    ")": ", ",
    "—": ", ",
    "\u2013": ", ",  # an en dash
}
_LETTERS = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        (  # noqa: SIM905
            "ay bee see dee ee eff gee aitch eye jay kay ell em en oh pee cue are ess tee you vee double_you ex why zee"
        ).split(),
        strict=True,
    )
)
_SPELLED_LENGTH = 3
"""Capitals of up to so many letters, or without a vowel, are read letter by letter: "US", "GPU", "HTTP"; not "NASA"."""

_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def spoken(text: str) -> str:
    """`text` with its numbers, symbols and abbreviations written out, one line break kept for each; ends in `.?!`."""
    text = "".join(_SYMBOLS.get(c, c) if c in "’‘…" else c for c in unicodedata.normalize("NFKC", text))
    for pattern, say in _RULES:
        text = pattern.sub(say, text)
    text = "".join(_SYMBOLS.get(character, character) for character in text)
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    text = text.replace("-", " ")
    text = re.sub(r"[^\S\n]+", " ", text)
    text = re.sub(r" ?,[ ,]*(?=[,.?!]|$)|^[ ,]+", "", text, flags=re.MULTILINE)
    text = re.sub(r" ?,(?: ?,)*", ",", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(line if line[-1] in ".?!" else f"{line}." for line in lines)


def cardinal(number: int) -> str:
    """12 is "twelve"; at most `_MAX_DIGITS` digits."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number < 20:
        return _ONES[number]
    if number < 100:
        rest = number % 10
        return _TENS[number // 10] + (f" {_ONES[rest]}" if rest else "")
    scale, name = next((scale, name) for scale, name in _SCALES if number >= scale)
    rest = number % scale
    between = " and " if scale == 100 else " "
    return f"{cardinal(number // scale)} {name}" + (f"{between}{cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """12 is "twelfth"."""
    before, _, last = cardinal(number).rpartition(" ")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return f"{before} {last}".strip()


def year(number: int) -> str:
    """1984 is "nineteen eighty four", 2005 is "two thousand five"."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(century * 100) + (f" {_ONES[rest]}" if rest else "")
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _digits(text: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in text if digit.isdecimal())


def _number(text: str) -> str:
    """Digits with commas and perhaps a decimal point."""
    whole, point, fraction = text.replace(",", "").partition(".")
    if len(whole) > _MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        said = _digits(whole)
    else:
        said = cardinal(int(whole or "0"))
    return f"{said} point {_digits(fraction)}" if point and fraction else said


def _plural(word: str) -> str:
    first, _, rest = word.partition(" ")
    many = _PENCE.get(first) or (first if first.endswith("z") else f"{first}s")
    return f"{many} {rest}".strip()


def _money(match: re.Match[str]) -> str:
    unit, part = _MONEY[match["sign"]]
    whole, cents, scale = match["whole"], match["cents"], match["scale"]
    if scale:
        return f"{_number(whole + (f'.{cents}' if cents else ''))} {scale} {_plural(unit)}"
    said = f"{_number(whole)} {unit if whole == '1' else _plural(unit)}"
    if not cents or not int(cents):
        return said
    count = int(cents.ljust(2, "0")[:2])
    few = f"{cardinal(count)} {part if count == 1 else _plural(part)}"
    return few if whole == "0" else f"{said} and {few}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    half = match[3] or ""
    if minute == 0:
        return cardinal(hour) + (half or " o'clock")
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}{half}"


def _year(match: re.Match[str]) -> str:
    said = year(int(match[1]))
    if not match[2]:
        return said
    return said[:-1] + "ies" if said.endswith("y") else said + "s"


def _unit(match: re.Match[str]) -> str:
    unit = _UNITS[match[2].lower()]
    return f"{_number(match[1])} {unit if match[1] == '1' else _plural(unit)}"


def _spell(match: re.Match[str]) -> str:
    word = match[1]
    if len(word) > _SPELLED_LENGTH and re.search("[AEIOUY]", word):
        return match[0]
    named = " ".join(_LETTERS[letter.lower()] for letter in word).replace("_", " ")
    return named + (match[2] and "s")


_RULES: tuple[_Rule, ...] = (
    (re.compile(r"(?<=\w)-(?=\w)"), lambda _match: " "),
    (re.compile(r"(?<!\w)-\s?(?=\d)"), lambda _match: "minus "),
    (
        re.compile(r"(?<![\w.])(?:" + "|".join(re.escape(a) for a in _ABBREVIATIONS) + r")(?!\w)", re.IGNORECASE),
        lambda match: _ABBREVIATIONS[match[0].lower()],
    ),
    (
        re.compile(
            rf"(?P<sign>[$£€])\s?(?P<whole>{_WHOLE})(?:\.(?P<cents>\d{{1,2}})(?!\d))?"
            r"(?:\s(?P<scale>thousand|million|billion|trillion)\b)?"
        ),
        _money,
    ),
    (re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)(?!\d)(\s*(?:am|pm|ay em|pee em)\b)?"), _time),
    (re.compile(r"\b(\d{1,15})(?:st|nd|rd|th)\b"), lambda match: ordinal(int(match[1]))),
    (re.compile(r"\b(1[1-9]\d\d|20\d\d)(s?)\b(?![,.]\d|\s?(?:km|kg|m|%)\b)"), _year),
    (
        re.compile(
            rf"(?<![\w.])((?:{_WHOLE})(?:\.\d+)?)\s?("
            + "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
            + r")(?!\w)",
            re.IGNORECASE,
        ),
        _unit,
    ),
    (re.compile(r"\b([A-Z]{2,5})(s?)\b(?![A-Z])"), _spell),
    (re.compile(rf"(?:{_WHOLE})(?:\.\d+)?"), lambda match: f" {_number(match[0])} "),
)
