"""SSML's `say-as`: a text in English words, according to what it stands for. Knows nothing about the syntax of SSML.

Source: W3C, SSML 1.0 say-as attribute values (Note of 2005), and what Google's and Amazon's synthesizers add.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tessera_speech.text import dates
from tessera_speech.text.normalization import normalize
from tessera_speech.text.numerals import LETTERS, MAX_DIGITS, digits, number, ordinal

_GROUPS = re.compile(r"\d+")


def say_as_words(text: str, kind: str, form: str = "") -> str | None:
    """`text` in words; None if it cannot be interpreted like that.

    Args:
        text: the written text, not empty.
        kind: one of `INTERPRETATIONS`.
        form: order of day, month and year in a date, for example `dmy`.
    """
    return _date(text, form) if kind == "date" else INTERPRETATIONS[kind](text)


def _characters(text: str) -> str | None:
    words = [LETTERS.get(c.lower()) or digits(c) or (None if c.isspace() else normalize(c).strip(" .")) for c in text]
    return ", ".join(each.replace("_", " ") for each in words if each) or None


def _cardinal(text: str) -> str | None:
    plain = text.replace(",", "").replace(" ", "")
    if not re.fullmatch(r"[+-]?\d+(?:\.\d+)?", plain, re.ASCII):
        return None
    return ("minus " if plain[0] == "-" else "") + number(plain.lstrip("+-"))


def _ordinal(text: str) -> str | None:
    match = re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", text.replace(",", ""), re.ASCII)
    return ordinal(int(match[1])) if match and len(match[1]) <= MAX_DIGITS else None


def _digits(text: str) -> str | None:
    return digits(text) or None


def _fraction(text: str) -> str | None:
    match = re.fullmatch(r"(?:\d+\s)?\d+\s?/\s?\d+", text, re.ASCII)
    return normalize(text.replace(" /", "/").replace("/ ", "/")).rstrip(".") if match else None


def _telephone(text: str) -> str | None:
    return dates.telephone(text) if _GROUPS.search(text) else None


def _time(text: str) -> str | None:
    return normalize(text).rstrip(".") if re.match(r"\s*\d{1,2}(:\d\d)?", text) else None


def _free(text: str) -> str | None:
    return normalize(text).rstrip(".") or None


def _date(text: str, form: str) -> str | None:
    if not form:
        words = normalize(text).rstrip(".")
        return words if any(month in words for month in dates.MONTHS) else None
    groups = _GROUPS.findall(text)
    if sorted(form) not in (sorted("dmy"), sorted("dm")) or len(groups) != len(form):
        return None
    named = dict(zip(form, groups, strict=True))
    return dates.date(int(named["d"]), int(named["m"]), dates.whole_year(named["y"]) if "y" in named else None)


INTERPRETATIONS: dict[str, Callable[[str], str | None]] = {
    "characters": _characters,
    "spell-out": _characters,
    "verbatim": _characters,
    "cardinal": _cardinal,
    "number": _cardinal,
    "ordinal": _ordinal,
    "digits": _digits,
    "fraction": _fraction,
    "unit": _free,
    "currency": _free,
    "date": lambda text: _date(text, ""),
    "time": _time,
    "telephone": _telephone,
}
