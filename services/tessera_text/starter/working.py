"""Works out sums as the answers show it: column by column, then all columns together, so that no step is hard.

Each function returns the sides of an equation after the first side. Knows neither questions nor units.
"""

from __future__ import annotations


def add(a: int, b: int) -> list[str]:
    """Sides for a sum: `347 + 256` is `500 + 90 + 13`, which is `603`. One-digit and round numbers need no steps."""
    longer, shorter = max(a, b), min(a, b)
    if longer < 10 or (shorter < 10 and longer % 10 == 0):
        return [str(a + b)]
    columns = zip(_digits(a, len(str(longer))), _digits(b, len(str(longer))), strict=True)
    return [" + ".join(str(x + y) for x, y in columns), str(a + b)]


def subtract(a: int, b: int) -> list[str]:
    """Sides for a difference: `614 - 287` is `400 - 70 - 3`, which is `327`; `287 - 614` is swapped first."""
    if a < b:
        return [f"-({side})" if " " in side else f"-{side}" for side in (f"{b} - {a}", *subtract(b, a))]
    if a < 10:
        return [str(a - b)]
    width = len(str(a))
    first, *others = (x - y for x, y in zip(_digits(a, width), _digits(b, width), strict=True))
    shown = "".join(f" {'-' if other < 0 else '+'} {abs(other)}" for other in others)
    return [f"{first}{shown}", str(a - b)]


def parts(number: int, factor: int) -> list[int]:
    """The products of a number's tens and of its ones with `factor`, where they are not zero: at least one."""
    products = [number // 10 * 10 * factor, number % 10 * factor]
    return [product for product in products if product] or [0]


def multiply(number: int, factor: int) -> list[str]:
    """Sides for a product: `68 × 9` is `540 + 72`, which is worked out as a sum."""
    products = parts(number, factor)
    if len(products) == 1:
        return [str(products[0])]
    return [f"{products[0]} + {products[1]}", *add(*products)]


def divide(dividend: int, divisor: int) -> list[str]:
    """Sides for a quotient, without the quotient: `287 / 5` is `(250 + 37) / 5`, which is `(250 + 35 + 2) / 5`."""
    quotient, rest = divmod(dividend, divisor)
    products = parts(quotient, divisor) if quotient else []
    split = [products[0], dividend - products[0]] if products else []
    full = [*products, *([rest] if rest else [])]
    steps = [shown for shown in (split, full) if len(shown) > 1 and shown[-1]]
    texts = [f"({' + '.join(map(str, shown))}) / {divisor}" for shown in steps]
    return texts[:1] if texts[:1] == texts[1:] else texts


def _digits(number: int, width: int) -> list[int]:
    """The value of each digit in its place, the highest place first."""
    return [int(digit) * 10 ** (width - 1 - place) for place, digit in enumerate(f"{number:0{width}d}")]
