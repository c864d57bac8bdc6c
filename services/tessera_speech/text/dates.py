"""Rules that write out English dates, ranges, fractions and telephone numbers in words, in the order of their use.

Text that is not a date stays for other rules. Knows nothing about money, units or abbreviations; see
`tessera_speech.text.normalization`.
"""

from __future__ import annotations

import re

from tessera_speech.text.numerals import cardinal, digits, ordinal, year
from tessera_speech.text.traced_text import Rule

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}
_MONTH = "|".join(f"{name}|{name[:3]}\\.?" for name in MONTHS) + r"|Sept\.?"
_MAX_DENOMINATOR = 20
"""Largest denominator that is read as an ordinal, beside 100."""
_PARTS = {2: "half", 4: "quarter"}


def date(day: int, month: int, of_year: int | None = None) -> str | None:
    """22, 11, 2026 is "November twenty second, twenty twenty six"; None for a date that does not exist."""
    if not 1 <= month <= len(MONTHS) or not 1 <= day <= 31:
        return None
    words = f"{MONTHS[month - 1]} {ordinal(day)}"
    return words if of_year is None else f"{words}, {_of_year(of_year)}"


def _of_year(number: int) -> str:
    return year(number) if 1000 <= number <= 2999 else cardinal(number)


def whole_year(text: str) -> int:
    """A year as a number; two digits are of this century up to 49, and of the last one from 50."""
    number = int(text)
    return number if len(text) > 2 else number + (2000 if number < 50 else 1900)


def _iso(match: re.Match[str]) -> str:
    return date(int(match[3]), int(match[2]), int(match[1])) or match[0]


def _slashes(match: re.Match[str]) -> str:
    first, second, of_year = int(match[1]), int(match[2]), whole_year(match[3])
    return date(second, first, of_year) or date(first, second, of_year) or match[0]


def _dots(match: re.Match[str]) -> str:
    return date(int(match[1]), int(match[2]), int(match[3])) or match[0]


def _named_month(text: str) -> int:
    return next(at for at, name in enumerate(MONTHS, 1) if name[:3] == text[:3])


def _month_day(match: re.Match[str]) -> str:
    return date(int(match[2]), _named_month(match[1]), int(match[3]) if match[3] else None) or match[0]


def _day_month(match: re.Match[str]) -> str:
    day, month = int(match[1]), _named_month(match[2])
    if not 1 <= day <= 31:
        return match[0]
    words = f"the {ordinal(day)} of {MONTHS[month - 1]}"
    return f"{words} {_of_year(int(match[3]))}" if match[3] else words


def telephone(text: str) -> str:
    """Digits one by one, with a comma between groups: "555-01" is "five five five, zero one"."""
    groups = [digits(group) for group in re.findall(r"\d+", text)]
    return ("plus " if text.lstrip().startswith("+") else "") + ", ".join(groups)


def fraction(above: int, below: int) -> str | None:
    """3, 4 is "three quarters"; None for a fraction that is not read that way."""
    if not 0 < above < below or not (below <= _MAX_DENOMINATOR or below == 100):
        return None
    part = _PARTS.get(below) or ordinal(below)
    many = "halves" if part == "half" else f"{part}s"
    return f"{cardinal(above)} {part if above == 1 else many}"


def _fraction(match: re.Match[str]) -> str:
    words = fraction(int(match[2]), int(match[3]))
    if words is None:
        return match[0]
    return f"{cardinal(int(match[1]))} and {words}" if match[1] else words


DATES: tuple[Rule, ...] = (
    (re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b(?![-\d])"), _iso),
    (re.compile(r"(?<![\w/])(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})(?![\w/])"), _slashes),
    (re.compile(r"(?<![\w.])(\d{1,2})\.(\d{1,2})\.(\d{4})\b"), _dots),
    (
        re.compile(rf"\b(Mon|Tues?|Wed|Thu(?:rs)?|Fri|Sat|Sun)\.?(?=,?\s+(?:{_MONTH}|\d))"),
        lambda match: _DAYS[match[1]],
    ),
    (re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+({_MONTH})(?!\w)(?:,?\s+(\d{{4}})\b)?"), _day_month),
    (re.compile(rf"\b({_MONTH})\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?![:/.]\d)(?:,?\s+(\d{{4}})\b)?"), _month_day),
    (
        re.compile(r"(?<![\w.-])(?:\+\d{1,3}[ -])?(?:\(\d{3}\)\s?|\d{3}[ .-])?\d{3}[.-]\d{4}(?![\w-])"),
        lambda match: telephone(match[0]),
    ),
    (re.compile(r"(?<![\w/.])(?:(\d{1,4})\s)?(\d{1,3})[/\u2044](\d{1,3})(?![\w/])"), _fraction),
    (
        re.compile(r"(?<![\w.,-])(\d+(?:\.\d+)?)\s?[-\u2013]\s?(?=[$£€]?\d+(?:\.\d+)?(?![\w-]))"),
        lambda match: f"{match[1]} to ",
    ),
)
