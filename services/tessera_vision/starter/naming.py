"""Names of items in a scene: kinds of shapes, names that fit one item alone, and places.

Knows nothing about questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera_vision.starter.data import (
    CELLS,
    COLORS,
    ROWS,
    SHAPES,
    SIZES,
    Digit,
    GridScene,
    Item,
    PrintedWord,
    Shape,
    pair_is_held_out,
)


@dataclass(frozen=True)
class ShapeKind:
    """A kind of shapes, such as red ones, or small red circles; an attribute that is None matches any value."""

    color: str | None = None
    shape: str | None = None
    size: str | None = None

    def __contains__(self, shape: Shape) -> bool:
        return (
            self.color in {None, shape.color} and self.shape in {None, shape.shape} and self.size in {None, shape.size}
        )

    def named(self, *, plural: bool = False) -> str:
        """The name of the kind, such as `small red circle`."""
        noun = self.shape or "shape"
        if plural:
            noun += "es" if noun.endswith("s") else "s"
        return " ".join(word for word in (self.size, self.color, noun) if word)


def phrase(item: Item) -> str:
    """The name of an item with its article, such as `a small red circle`."""
    if isinstance(item, Shape):
        return article(f"{item.size} {item.color} {item.shape}")
    return f"a handwritten {item.value}" if isinstance(item, Digit) else f"the word {item.text}"


def article(name: str) -> str:
    """`name` with `a` or `an`."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def place(item: Item) -> str:
    """The place of an item, such as `at the top left`."""
    if isinstance(item, PrintedWord):
        return "in the middle" if item.row == 1 else f"at the {ROWS[item.row]}"
    return at(item.cell)


def spots(*items: Item) -> tuple[int, ...]:
    """The cells that these items occupy."""
    return tuple(
        cell
        for item in items
        for cell in (range(3 * item.row, 3 * item.row + 3) if isinstance(item, PrintedWord) else (item.cell,))
    )


def unique_name(rng: np.random.Generator, scene: GridScene, item: Item) -> str | None:
    """A name with `the` that fits only `item`; None when no such name is drawn."""
    if isinstance(item, PrintedWord):
        if len(scene.words) > 1 or rng.random() < 0.5:
            return None if sum(word.text == item.text for word in scene.words) > 1 else f"the word {item.text}"
        return "the word"
    if isinstance(item, Digit):
        if len(scene.digits) > 1 or rng.random() < 0.5:
            same = sum(digit.value == item.value for digit in scene.digits)
            return None if same > 1 else f"the handwritten {item.value}"
        return "the handwritten digit"
    kinds = [
        ShapeKind(shape=item.shape),
        ShapeKind(color=item.color),
        ShapeKind(color=item.color, shape=item.shape),
        ShapeKind(size=item.size, shape=item.shape),
        ShapeKind(color=item.color, shape=item.shape, size=item.size),
    ]
    fitting = [kind for kind in kinds if sum(shape in kind for shape in scene.shapes) == 1]
    return f"the {fitting[int(rng.integers(len(fitting)))].named()}" if fitting else None


def a_kind(rng: np.random.Generator, scene: GridScene, *, plain: bool = True) -> ShapeKind:
    """Draw a kind to ask about, which the scene contains more than half of the time."""
    if scene.shapes and rng.random() < 0.65:
        model = scene.shapes[int(rng.integers(len(scene.shapes)))]
        color, shape, size = model.color, model.shape, model.size
        if rng.random() < 0.2:
            color = color_with(rng, scene, shape)
    else:
        shape, size = pick(rng, *SHAPES), pick(rng, *SIZES)
        color = color_with(rng, scene, shape)
    forms = [
        ShapeKind(color=color),
        ShapeKind(shape=shape),
        ShapeKind(color=color, shape=shape),
        ShapeKind(size=size, shape=shape),
        ShapeKind(color=color, shape=shape, size=size),
        ShapeKind(size=size),
        ShapeKind(),
    ]
    return forms[int(rng.integers(len(forms) if plain else len(forms) - 2))]


def color_with(rng: np.random.Generator, scene: GridScene, shape: str) -> str:
    """Draw a colour to ask about with a shape; the pair is held out only if the scene has a held-out pair.

    Otherwise training would ask for held-out pairs and teach that they never exist.
    """
    new = any(pair_is_held_out(item.color, item.shape) for item in scene.shapes)
    return pick(rng, *(color for color in COLORS if new or not pair_is_held_out(color, shape)))


def at(cell: int) -> str:
    return f"at the {CELLS[cell]}"


def yes(true: bool) -> str:
    return "yes" if true else "no"


def another(rng: np.random.Generator, values: Sequence[str], value: str) -> str:
    return pick(rng, *(other for other in values if other != value))


def pick(rng: np.random.Generator, *values: str) -> str:
    return values[int(rng.integers(len(values)))]
