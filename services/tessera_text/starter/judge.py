"""Judges whether an answer is right: works it out again, by other means than the generator of questions.

Every equation of an answer must hold, step by step and with its units, and nothing may be missing or added. Shares no
code with the generator of questions.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable
from fractions import Fraction

_UNITS = {
    "km": ("length", "1000"),
    "m": ("length", "1"),
    "cm": ("length", "0.01"),
    "mm": ("length", "0.001"),
    "in": ("length", "0.0254"),
    "ft": ("length", "0.3048"),
    "yd": ("length", "0.9144"),
    "t": ("mass", "1000000"),
    "kg": ("mass", "1000"),
    "g": ("mass", "1"),
    "L": ("volume", "1"),
    "mL": ("volume", "0.001"),
    "s": ("time", "1"),
    "min": ("time", "60"),
    "h": ("time", "3600"),
    "days": ("time", "86400"),
    "weeks": ("time", "604800"),
}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "×", "divide": "/"}
_MORE = {"longer", "heavier", "more"}
_SIDE = re.compile(r"(?P<sum>[-\d.+×/() ]*[\d)])(?: (?P<unit>[A-Za-z]+))?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Quantity = tuple[str, Fraction]
"""A kind of measure (such as length), and an amount in the base unit of that kind."""


class WrongAnswerError(Exception):
    """The answer is no equation, or an equation that does not hold."""


def is_right(ask: tuple[str, ...], answer: str) -> bool:
    """Whether `answer` is right for the question `ask` (see `data.ArithmeticQuestion`)."""
    try:
        return _is_right(ask[0], list(ask[1:]), answer)
    except WrongAnswerError:
        return False


def _is_right(kind: str, words: list[str], answer: str) -> bool:
    if kind == "other":
        return answer.startswith("I can only answer ") and answer.endswith(".")
    if kind == "divide":
        return _division(words[0], words[1], answer)
    if kind in _SIGNS:
        first, last, _ = _chain(answer)
        return first == f"{words[0]} {_SIGNS[kind]} {words[1]}" and bool(_NUMBER.fullmatch(last))
    if kind in ("ascending", "descending"):
        return answer.split(", ") == sorted(words, key=int, reverse=kind == "descending")
    if kind in ("largest", "smallest", "median"):
        found = re.fullmatch(r"Sorted: (.*)\. (.*): (.*)\.", answer)
        if found is None:
            return False
        pick: dict[str, Callable[[list[int]], float]] = {"largest": max, "smallest": min, "median": statistics.median}
        right = str(pick[kind]([int(word) for word in words]))
        return found[1].split(", ") == sorted(words, key=int) and found[2].lower() == kind and found[3] == right
    if kind == "convert":
        first, last, _ = _chain(answer)
        return first == f"{words[0]} {words[1]}" and last.endswith(f" {words[2]}") and _is_plain(last)
    if kind.startswith(("which ", "is ")):
        return _comparison(kind, words, answer)
    return _measuring(kind, words, answer)


def _division(dividend: str, divisor: str, answer: str) -> bool:
    found = re.fullmatch(r"(.*?)(?: remainder (\d+))?", answer)
    assert found is not None
    sides = found[1].split(" = ")
    rest = int(found[2] or 0)
    exact = Fraction(dividend) / int(divisor)
    if sides[0] != f"{dividend} / {divisor}" or len(sides) < 2 or not sides[-1].isdecimal() or rest >= int(divisor):
        return False
    if any(_value(side) != ("", exact) for side in sides[:-1]):
        return False
    return int(sides[-1]) + Fraction(rest, int(divisor)) == exact


def _comparison(kind: str, words: list[str], answer: str) -> bool:
    a, b = map(int, words)
    asked = kind.split()[1]
    found = re.fullmatch(r"(.*), so (.*)\.", answer)
    if found is None or found[1] != (f"{a} = {b}" if a == b else f"{min(a, b)} < {max(a, b)}"):
        return False
    if kind.startswith("which "):
        return found[2] == f"{max(a, b) if asked == 'larger' else min(a, b)} is {asked}"
    if a == b:
        return found[2] == f"neither is {asked}: no"
    larger_first = a > b
    first_is_asked = larger_first == (asked == "larger")
    return found[2] == f"{a if first_is_asked else b} is {asked}: {'yes' if first_is_asked else 'no'}"


def _measuring(word: str, words: list[str], answer: str) -> bool:
    found = re.fullmatch(r"(.*?)(?: and (\S+) < (\S+))?, so (.*)\.", answer)
    if found is None:
        return False
    x, y = f"{words[0]} {words[1]}", f"{words[2]} {words[3]}"
    first, last, _ = _chain(found[1])
    other = y if first == x else x
    if first not in (x, y) or not _is_plain(last) or last.split()[-1] != other.split()[-1]:
        return False
    (_, one), (_, two) = _value(x), _value(y)
    if one == two:
        return found[2] is None and found[4] == "they are equal"
    ordered = sorted((last.split()[0], other.split()[0]), key=Fraction)
    chosen = x if (one > two) == (word in _MORE) else y
    return [found[2], found[3]] == ordered and found[4] == f"{chosen} is {word}"


def _is_plain(side: str) -> bool:
    return bool(_NUMBER.fullmatch(side.split(" ", maxsplit=1)[0])) and side.count(" ") == 1


def _chain(text: str) -> tuple[str, str, Quantity]:
    """The first and the last side of an equation whose sides are all equal, and their common quantity."""
    sides = text.split(" = ")
    values = [_value(side) for side in sides]
    if len(sides) < 2 or any(value != values[0] for value in values):
        raise WrongAnswerError(text)
    return sides[0], sides[-1], values[0]


def _value(side: str) -> Quantity:
    found = _SIDE.fullmatch(side)
    if found is None or (found["unit"] and found["unit"] not in _UNITS):
        raise WrongAnswerError(side)
    measured, size = _UNITS[found["unit"]] if found["unit"] else ("", "1")
    try:
        tree = ast.parse(found["sum"].replace("×", "*"), mode="eval")
        return measured, _evaluate(tree.body) * Fraction(size)
    except (SyntaxError, ZeroDivisionError, ValueError) as error:
        raise WrongAnswerError(side) from error


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _evaluate(left) + _evaluate(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _evaluate(left) - _evaluate(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _evaluate(left) * _evaluate(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _evaluate(left) / _evaluate(right)
        case _:
            raise WrongAnswerError(ast.unparse(node))
