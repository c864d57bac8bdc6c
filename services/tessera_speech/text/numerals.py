"""Numbers in English words: cardinals, ordinals, years, digits one by one. Knows nothing about units or texts."""

from __future__ import annotations

_ONES = (  # noqa: SIM905 - easier to read
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = ("", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split())  # noqa: SIM905
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
MAX_DIGITS = 15
"""Most digits of a number that is read as one; longer ones are read digit by digit."""
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LETTERS = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        (  # noqa: SIM905
            "ay bee see dee ee eff gee aitch eye jay kay ell em en oh pee cue are ess tee you vee double_you ex why zee"
        ).split(),
        strict=True,
    )
)
"""Names of letters; `_` stands for a space."""


def cardinal(number: int) -> str:
    """12 is "twelve"; for numbers of at most `MAX_DIGITS` digits."""
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


def digits(text: str) -> str:
    """ "2 10" is "two one zero"; other characters are left out."""
    return " ".join(_ONES[int(digit)] for digit in text if digit.isdecimal())


def number(text: str) -> str:
    """A number written with commas and perhaps a decimal point, in words."""
    whole, point, fraction = text.replace(",", "").partition(".")
    if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole or "0"))
    return f"{words} point {digits(fraction)}" if point and fraction else words
