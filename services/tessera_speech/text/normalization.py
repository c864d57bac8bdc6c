"""English text normalization: numbers, money, times, years, symbols and abbreviations written out in words.

For synthesizers whose alphabet has letters, a few punctuation marks and no digits. Text that no rule knows stays as it
is. Knows nothing about the alphabet of a model or about pronunciation.
"""

from __future__ import annotations

import re
import unicodedata

from tessera_speech.text.dates import DATES
from tessera_speech.text.numerals import LETTERS, cardinal, number, ordinal, year
from tessera_speech.text.traced_text import Rule, TracedText

_MONEY = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent"), "¥": ("yen", "sen")}
_PLURALS = {"penny": "pence", "foot": "feet", "yen": "yen", "sen": "sen"}
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
    "ave.": "avenue",
    "blvd.": "boulevard",
    "capt.": "captain",
    "co.": "company",
    "corp.": "corporation",
    "est.": "established",
    "fig.": "figure",
    "gen.": "general",
    "gov.": "governor",
    "inc.": "incorporated",
    "lt.": "lieutenant",
    "ltd.": "limited",
    "max.": "maximum",
    "min.": "minimum",
    "mt.": "mount",
    "rd.": "road",
    "sgt.": "sergeant",
    "vol.": "volume",
    "w/o": "without",
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
    "m/s": "meter per second",
    "ghz": "gigahertz",
    "mhz": "megahertz",
    "tb": "terabyte",
    "mbps": "megabit per second",
    "gbps": "gigabit per second",
    "kwh": "kilowatt_hour",
    "kw": "kilowatt",
    "db": "decibel",
    "ft": "foot",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "yd": "yard",
    "mi": "mile",
    "min": "minute",
    "km2": "square_kilometer",
    "m2": "square_meter",
    "m3": "cubic_meter",
}
_SHORT_UNITS = {
    "m": "meter",
    "g": "gram",
    "l": "liter",
    "L": "liter",
    "s": "second",
    "h": "hour",
    "W": "watt",
    "V": "volt",
}
"""Units that are told from words by their case."""
_SYMBOLS = {
    "%": " percent",
    "&": " and ",
    "@": " at ",
    "+": " plus ",
    "=": " equals ",
    "#": " number ",
    "°": " degrees",
    "×": " times ",
    "<": " less than ",
    ">": " greater than ",
    "~": " about ",
    "|": " ",
    "\\": " ",
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
_SPELLED_LENGTH = 3
"""Words in capitals of at most this length, or without a vowel, are spelled out: "US", "GPU", "HTTP"; not "NASA"."""


def normalize(text: str) -> str:
    """`text` with numbers, symbols and abbreviations written out. Line breaks stay; every line ends in `.`, `?` or
    `!`."""
    return normalize_traced(TracedText(text)).text


def normalize_traced(text: TracedText) -> TracedText:
    """`normalize` for a text whose characters keep their origins."""
    text = text.map(_composed)
    for rule in RULES:
        text = text.sub(*rule)
    text = text.map(lambda c: _SYMBOLS.get(c, c))
    text = text.map(_plain)
    for rule in _TIDY:
        text = text.sub(*rule)
    return text


def _composed(character: str) -> str:
    parts = unicodedata.normalize("NFKC", character)
    return "".join(_SYMBOLS[part] if part in "’‘…" else part for part in parts)


def _plain(character: str) -> str:
    parts = unicodedata.normalize("NFKD", character)
    return "".join(" " if part == "-" else part for part in parts if not unicodedata.combining(part))


def _plural(word: str) -> str:
    first, _, rest = word.partition(" ")
    many = _PLURALS.get(first) or (first if first.endswith("z") else f"{first}s")
    return f"{many} {rest}".strip()


def _money(match: re.Match[str]) -> str:
    unit, part = _MONEY[match["sign"]]
    whole, cents, scale = match["whole"], match["cents"], match["scale"]
    if scale:
        return f"{number(whole + (f'.{cents}' if cents else ''))} {scale} {_plural(unit)}"
    words = f"{number(whole)} {unit if whole == '1' else _plural(unit)}"
    if not cents or not int(cents):
        return words
    count = int(cents.ljust(2, "0")[:2])
    few = f"{cardinal(count)} {part if count == 1 else _plural(part)}"
    return few if whole == "0" else f"{words} and {few}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match[1]), int(match[2])
    half = match[3] or ""
    if minute == 0:
        return cardinal(hour) + (half or " o'clock")
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}{half}"


def _half_of_day(match: re.Match[str]) -> str:
    return f"{cardinal(int(match[1]))} {'ay' if match[2] in 'aA' else 'pee'} em"


def _year(match: re.Match[str]) -> str:
    words = year(int(match[1]))
    if not match[2]:
        return words
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _unit(match: re.Match[str]) -> str:
    unit = _SHORT_UNITS.get(match[2]) or _UNITS[match[2].lower()]
    return f"{number(match[1])} {unit if match[1] == '1' else _plural(unit)}"


def _spell(match: re.Match[str]) -> str:
    word = match[1]
    if len(word) > _SPELLED_LENGTH and re.search("[AEIOUY]", word):
        return match[0]
    named = " ".join(LETTERS[letter.lower()] for letter in word).replace("_", " ")
    return named + (match[2] and "s")


_TIDY: tuple[Rule, ...] = (
    (re.compile(r"[^\S\n]+"), lambda _match: " "),
    (re.compile(r" ?,[ ,]*(?=[,.?!]|$)|^[ ,]+", re.MULTILINE), lambda _match: ""),
    (re.compile(r" ?,(?: ?,)*"), lambda _match: ","),
    (re.compile(r" *\n\s*"), lambda _match: "\n"),
    (re.compile(r"\A\s+|\s+\Z"), lambda _match: ""),
    (re.compile(r"(?<=[^.?!\n])(?=\n|\Z)"), lambda _match: "."),
)
RULES: tuple[Rule, ...] = (
    *DATES,
    (
        re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}\b"),
        lambda match: " " + " point ".join(map(number, match[0].split("."))),
    ),
    (re.compile(r"(?<=\d)\s?x\s?(?=\d)"), lambda _match: " by "),
    (re.compile(r"\b[Nn]o\.\s?(?=\d)"), lambda _match: "number "),
    (re.compile(r"(?<=[a-z]\s)St\.(?=\s*(?:[,.;]|\Z|\n|[a-z]|and\b))"), lambda _match: "street"),
    (re.compile(r"\b(1[0-2]|[1-9])\s?([ap])\.?m\b\.?", re.IGNORECASE), _half_of_day),
    (re.compile(r"(?<=\w)-(?=\w)"), lambda _match: " "),
    (re.compile(r"(?<!\w)-\s?(?=\d)"), lambda _match: "minus "),
    (
        re.compile(r"(?<![\w.])(?:" + "|".join(re.escape(a) for a in _ABBREVIATIONS) + r")(?!\w)", re.IGNORECASE),
        lambda match: _ABBREVIATIONS[match[0].lower()],
    ),
    (
        re.compile(
            rf"(?P<sign>[$£€¥])\s?(?P<whole>{_WHOLE})(?:\.(?P<cents>\d{{1,2}})(?!\d))?"
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
    (re.compile(rf"(?<![\w.])((?:{_WHOLE})(?:\.\d+)?)\s?([mglLshWV])(?!\w)"), _unit),
    (re.compile(r"(?<=\w\w)\.(?=[a-z]{2,})"), lambda _match: " dot "),
    (re.compile(r"\b([A-Z]{2,5})(s?)\b(?![A-Z])"), _spell),
    (re.compile(rf"(?:{_WHOLE})(?:\.\d+)?"), lambda match: f" {number(match[0])} "),
)
