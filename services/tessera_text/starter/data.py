"""Questions with exact answers, drawn at random: the starter's training data, and the held-out data that judges it.

A question is held out when one of its numbers is a held-out number, or when its numbers together are a held-out
combination. Both follow from checksums of the numbers alone, whatever the question asks. Questions whose numbers are
all below ten are always for training, because they are the tables that must be memorized. Phrasings have a split of
their own (see `phrases`). Knows neither tokens nor models.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import numpy as np

from tessera_text.starter import phrases, working
from tessera_text.starter.phrases import Phrasings
from tessera_text.starter.units import PAIRS, Pair, Unit

HELD_OUT_NUMBERS = 25
"""One number in 25 is held out, if it is ten or more."""
HELD_OUT_COMBINATIONS = 10
"""One combination of numbers in ten is held out."""

Split = Literal["train", "held_out"]
Random = np.random.Generator


@dataclass(frozen=True)
class ArithmeticQuestion:
    """One question with its answer.

    Attributes:
        task: kind of the question, a key of `TASKS`.
        text: the question as the user writes it.
        answer: the answer as the assistant must write it.
        ask: the question as words and numbers, which is all that a judge needs.
        numbers: the operands, as `text` writes them.
    """

    task: str
    text: str
    answer: str
    ask: tuple[str, ...]
    numbers: tuple[str, ...]


def number_is_held_out(number: str) -> bool:
    """Whether no training question has this operand."""
    return Decimal(number) >= 10 and zlib.crc32(f"number {number}".encode()) % HELD_OUT_NUMBERS == 0


def is_held_out(numbers: Sequence[str]) -> bool:
    """Whether no training question has exactly these operands, in any order."""
    if any(number_is_held_out(number) for number in numbers):
        return True
    if all(len(number) == 1 for number in numbers):
        return False
    key = " ".join(sorted(numbers))
    return zlib.crc32(f"together {key}".encode()) % HELD_OUT_COMBINATIONS == 0


def draw(random: Random, task: str, split: Split, *, phrasing: Split) -> ArithmeticQuestion:
    """Draw a question of `task` from a split of the operands; `phrasing` is the split of its phrasing."""
    while True:
        question = TASKS[task](random, phrasing)
        if not question.numbers:
            return question
        if is_held_out(question.numbers) == (split == "held_out"):
            return question


def integer(random: Random, digits: int = 3) -> int:
    """Draw an integer of up to `digits` digits; longer ones are more frequent."""
    most = digits if random.random() < 0.6 else int(random.integers(1, digits + 1))
    return int(random.integers(10 ** (most - 1) if most > 1 else 0, 10**most))


def pick(random: Random, options: Sequence[str]) -> str:
    """Draw one of `options`."""
    return options[int(random.integers(len(options)))]


def _phrase(random: Random, phrasings: Phrasings, phrasing: Split, **places: object) -> str:
    """Draw a phrasing and fill its places, sometimes in the way of polite people or of people in a hurry."""
    template = pick(random, phrasings.trained if phrasing == "train" else phrasings.held_out)
    if template.split(" ", 1)[0] in phrases.IMPERATIVES and random.random() < 0.15:
        polite = f"Please {template[0].lower()}{template[1:]}"
        template = template if phrasing == "train" and polite in phrasings.held_out else polite
    name, other = pick(random, phrases.NAMES), pick(random, phrases.NAMES)
    words = {"name": name, "other": other, "things": pick(random, phrases.THINGS), "boxes": pick(random, phrases.BOXES)}
    text = template.format(**words, **places)
    dice = random.random()
    if dice < 0.08:
        text = pick(random, phrases.OPENINGS) + text
    elif dice < 0.14 and text[-1] in ".?":
        text += pick(random, phrases.CLOSINGS)
    elif dice < 0.20:
        text = text.rstrip(".?")
    return text.lower() if random.random() < 0.1 and not any(symbol in text for symbol in (" L", "mL")) else text


def _list(random: Random, numbers: Sequence[str]) -> str:
    dice = random.random()
    if dice < 0.15:
        return " ".join(numbers)
    if dice < 0.35:
        return ", ".join(numbers[:-1]) + " and " + numbers[-1]
    return ", ".join(numbers)


def _add(random: Random, phrasing: Split) -> ArithmeticQuestion:
    a, b = integer(random), integer(random)
    text = _phrase(random, phrases.ADD, phrasing, a=a, b=b)
    answer = " = ".join([f"{a} + {b}", *working.add(a, b)])
    return ArithmeticQuestion("add", text, answer, ("add", str(a), str(b)), (str(a), str(b)))


def _subtract(random: Random, phrasing: Split) -> ArithmeticQuestion:
    a, b = integer(random), integer(random)
    phrasings = phrases.SUBTRACT
    if random.random() < 0.3:
        a, b = max(a, b), min(a, b)
        phrasings = phrases.SUBTRACT_STORIES
    text = _phrase(random, phrasings, phrasing, a=a, b=b)
    answer = " = ".join([f"{a} - {b}", *working.subtract(a, b)])
    return ArithmeticQuestion("subtract", text, answer, ("subtract", str(a), str(b)), (str(a), str(b)))


def _multiply(random: Random, phrasing: Split) -> ArithmeticQuestion:
    a, b = integer(random, 2), int(random.integers(2, 10))
    steps = working.multiply(a, b)
    if random.random() < 0.5:
        a, b = b, a
    text = _phrase(random, phrases.MULTIPLY, phrasing, a=a, b=b)
    return ArithmeticQuestion(
        "multiply", text, " = ".join([f"{a} × {b}", *steps]), ("multiply", str(a), str(b)), (str(a), str(b))
    )


def _divide(random: Random, phrasing: Split) -> ArithmeticQuestion:
    quotient, divisor = max(1, integer(random, 2)), int(random.integers(2, 10))
    rest = int(random.integers(1, divisor)) if random.random() < 0.3 else 0
    dividend = quotient * divisor + rest
    sides = [f"{dividend} / {divisor}", *working.divide(dividend, divisor), str(quotient)]
    answer = " = ".join(sides) + (f" remainder {rest}" if rest else "")
    text = _phrase(random, phrases.DIVIDE, phrasing, a=dividend, b=divisor)
    numbers = (str(dividend), str(divisor))
    return ArithmeticQuestion("divide", text, answer, ("divide", *numbers), numbers)


def _sort(random: Random, phrasing: Split) -> ArithmeticQuestion:
    values = [integer(random) for _ in range(random.integers(3, 6))]
    order = "descending" if random.random() < 0.5 else "ascending"
    numbers = tuple(map(str, values))
    text = _phrase(random, phrases.SORT[order], phrasing, list=_list(random, numbers))
    answer = ", ".join(map(str, sorted(values, reverse=order == "descending")))
    return ArithmeticQuestion("sort", text, answer, (order, *numbers), numbers)


def _extreme(random: Random, phrasing: Split) -> ArithmeticQuestion:
    values = [integer(random) for _ in range(random.integers(3, 6))]
    which = "largest" if random.random() < 0.5 else "smallest"
    numbers = tuple(map(str, values))
    ordered = sorted(values)
    answer = f"{_ordered(ordered)} {which.capitalize()}: {ordered[-1 if which == 'largest' else 0]}."
    text = _phrase(random, phrases.PICK[which], phrasing, list=_list(random, numbers))
    return ArithmeticQuestion("extreme", text, answer, (which, *numbers), numbers)


def _ordered(values: Sequence[int]) -> str:
    return f"Sorted: {', '.join(map(str, values))}."


def _median(random: Random, phrasing: Split) -> ArithmeticQuestion:
    values = sorted(integer(random) for _ in range(random.choice([3, 5])))
    answer = f"{_ordered(values)} Median: {values[len(values) // 2]}."
    numbers = tuple(str(value) for value in random.permutation(values))
    text = _phrase(random, phrases.MEDIAN, phrasing, list=_list(random, numbers))
    return ArithmeticQuestion("median", text, answer, ("median", *numbers), numbers)


def _unit(random: Random, unit: Unit) -> str:
    return unit.symbol if random.random() < 0.5 else pick(random, (unit.symbol, *unit.names))


def _plain(value: Decimal) -> str:
    """The value as text without an exponent and without trailing zeros."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _of_big(random: Random, pair: Pair) -> Decimal:
    """Draw a value in the larger unit of a pair."""
    if not pair.metric:
        return Decimal(max(2, integer(random, 2)))
    decimals = int(random.choice([0, 0, 0, 1, 1, 2])) if pair.factor > 10 else int(random.choice([0, 0, 1]))
    return Decimal(max(1, integer(random))) / Decimal(10) ** decimals


def _to_small(value: Decimal, pair: Pair) -> tuple[str, str]:
    """A chain of equations from the larger unit to the smaller one, and its last value."""
    result = _plain(value * pair.factor)
    steps = [result] if pair.metric else working.multiply(int(value), pair.factor)
    shown = [f"({step})" if " " in step else step for step in steps]
    sides = [f"{_plain(value)} {pair.big.symbol}", *(f"{step} {pair.small.symbol}" for step in shown)]
    return " = ".join(sides), result


def _convert(random: Random, phrasing: Split) -> ArithmeticQuestion:
    pair = PAIRS[int(random.integers(len(PAIRS)))]
    big = _of_big(random, pair)
    if random.random() < 0.5:
        source, target, value = pair.big, pair.small, _plain(big)
        answer, _ = _to_small(big, pair)
    else:
        source, target, value = pair.small, pair.big, _plain(big * pair.factor)
        shown = [] if pair.metric else working.parts(int(big), pair.factor)
        middle = f" = ({' + '.join(map(str, shown))}) / {pair.factor} {target.symbol}" if len(shown) > 1 else ""
        answer = f"{value} {source.symbol}{middle} = {_plain(big)} {target.symbol}"
    text = _phrase(random, phrases.CONVERT, phrasing, v=value, u=_unit(random, source), w=_unit(random, target))
    return ArithmeticQuestion("convert", text, answer, ("convert", value, source.symbol, target.symbol), (value,))


def _near(random: Random, value: int) -> int:
    """Draw a number that is sometimes hard to distinguish from `value`."""
    dice = random.random()
    if dice < 0.08:
        return value
    if dice < 0.5:
        return max(0, value + int(random.integers(-40, 41)))
    return integer(random)


def _compare(random: Random, phrasing: Split) -> ArithmeticQuestion:
    a = integer(random)
    b = _near(random, a)
    word = "larger" if random.random() < 0.5 else "smaller"
    numbers = (str(a), str(b))
    relation = f"{a} = {b}" if a == b else _relation(Decimal(a), Decimal(b))
    chosen = max(a, b) if word == "larger" else min(a, b)
    if random.random() < 0.5 and a != b:
        text = _phrase(random, phrases.COMPARE[word], phrasing, a=a, b=b)
        return ArithmeticQuestion(
            "compare", text, f"{relation}, so {chosen} is {word}.", (f"which {word}", *numbers), numbers
        )
    text = _phrase(random, phrases.IS[word], phrasing, a=a, b=b)
    verdict = f"neither is {word}: no" if a == b else f"{chosen} is {word}: {'yes' if chosen == a else 'no'}"
    return ArithmeticQuestion("compare", text, f"{relation}, so {verdict}.", (f"is {word}", *numbers), numbers)


def _relation(a: Decimal, b: Decimal) -> str:
    """The relation of two numbers with the smaller one first, so that comparing comes before answering."""
    return f"{_plain(min(a, b))} < {_plain(max(a, b))}"


def _measure(random: Random, phrasing: Split) -> ArithmeticQuestion:
    pair = PAIRS[int(random.integers(len(PAIRS)))]
    value = _of_big(random, pair)
    chain, result = _to_small(value, pair)
    same = Decimal(result)
    other = same if random.random() < 0.1 else (same * Decimal(int(random.integers(50, 150))) / 100).to_integral_value()
    big, small = (_plain(value), pair.big.symbol), (_plain(other), pair.small.symbol)
    shown = [f"{big[0]} {_unit(random, pair.big)}", f"{small[0]} {_unit(random, pair.small)}"]
    more = bool(random.random() < 0.5)
    word = pair.words[0 if more else 1]
    x, y = shown if random.random() < 0.5 else shown[::-1]
    text = _phrase(random, phrases.MEASURE, phrasing, word=word, x=x, y=y)
    chosen = big if (same > other) == more else small
    end = f" and {_relation(same, other)}, so {' '.join(chosen)} is {word}."
    if same == other:
        end = ", so they are equal."
    return ArithmeticQuestion("measure", text, f"{chain}{end}", (word, *big, *small), (big[0], small[0]))


def _other(random: Random, phrasing: Split) -> ArithmeticQuestion:
    def options(phrasings: Phrasings) -> tuple[str, ...]:
        return phrasings.trained if phrasing == "train" else phrasings.held_out

    noun, place = pick(random, options(phrases.NOUNS)), pick(random, options(phrases.PLACES))
    text = _phrase(random, phrases.OTHER, phrasing, noun=noun, place=place)
    return ArithmeticQuestion("other", text, phrases.REFUSAL, ("other",), ())


TASKS: dict[str, Callable[[Random, Split], ArithmeticQuestion]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "sort": _sort,
    "extreme": _extreme,
    "median": _median,
    "convert": _convert,
    "compare": _compare,
    "measure": _measure,
    "other": _other,
}
