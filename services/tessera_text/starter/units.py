"""The units that the starter converts: how they are written, and the factors between them.

Knows nothing about questions. The judge has a table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit: the symbol that answers use, and the names that questions use beside it."""

    symbol: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Two units of one measure: `big` is `factor` times `small`.

    `words` are the adjectives for more and for less of it.
    """

    big: Unit
    small: Unit
    factor: int
    words: tuple[str, str]

    @property
    def metric(self) -> bool:
        """Whether converting only moves the decimal point."""
        return self.factor in (10, 100, 1000)


_KM = Unit("km", ("kilometers", "kilometres"))
_M = Unit("m", ("meters", "metres"))
_CM = Unit("cm", ("centimeters", "centimetres"))
_MM = Unit("mm", ("millimeters", "millimetres"))
_T = Unit("t", ("tonnes", "tons"))
_KG = Unit("kg", ("kilograms", "kilos"))
_G = Unit("g", ("grams",))
_L = Unit("L", ("liters", "litres"))
_ML = Unit("mL", ("milliliters", "ml"))
_S = Unit("s", ("seconds",))
_MIN = Unit("min", ("minutes",))
_H = Unit("h", ("hours",))
_WEEK = Unit("weeks", ())
_DAY = Unit("days", ())
_FT = Unit("ft", ("feet",))
_IN = Unit("in", ("inches",))
_YD = Unit("yd", ("yards",))

_LENGTH = ("longer", "shorter")
_MASS = ("heavier", "lighter")
_VOLUME = ("more", "less")

PAIRS = (
    Pair(_KM, _M, 1000, _LENGTH),
    Pair(_M, _CM, 100, _LENGTH),
    Pair(_CM, _MM, 10, _LENGTH),
    Pair(_M, _MM, 1000, _LENGTH),
    Pair(_KG, _G, 1000, _MASS),
    Pair(_T, _KG, 1000, _MASS),
    Pair(_L, _ML, 1000, _VOLUME),
    Pair(_MIN, _S, 60, _LENGTH),
    Pair(_H, _MIN, 60, _LENGTH),
    Pair(_WEEK, _DAY, 7, _LENGTH),
    Pair(_YD, _FT, 3, _LENGTH),
    Pair(_FT, _IN, 12, _LENGTH),
)
