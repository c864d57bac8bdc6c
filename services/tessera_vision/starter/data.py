"""Scenes to train and judge `scenes-vision` on: what a picture shows, and which pictures are held out.

A scene lists shapes, handwritten digits and printed words, each with a place; `drawing` draws them. Held out are one
pair of colour and shape in eight, one pair of word and font in eight, the last writers of the digits, and one scene in
ten by the checksum of its content.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "ring")
SIZES = ("small", "large")
ROWS = ("top", "middle", "bottom")
CELLS = (
    *("top left", "top center", "top right"),
    *("middle left", "center", "middle right"),
    *("bottom left", "bottom center", "bottom right"),
)
"""Names of the cells of a 3x3 grid, row by row."""
CENTER = 4
_VOCABULARY = """
apple baker bird boat book bread bridge cake cat chair clock cloud coffee corn dance door dream eagle earth fire fish
flower forest garden ghost gold grape hat honey horse hotel house island juice jump king lamp lemon lion magic milk
moon mouse music night north ocean open paper piano pizza queen quiet rain river robot school sea ship silver sky snow
stone stop sugar sun table tiger train tree vase water wave west wind winter wolf yes zebra
"""
WORDS = tuple(_VOCABULARY.split())
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmb10", "cmss10", "cmtt10"),
)
"""File names of the fonts, which come with matplotlib."""
DIGIT_SAMPLES = 1797
TRAINED_DIGITS = 1400
"""Handwritten samples to train on. The samples are sorted by writer, and other writers wrote those from here on."""
MOST_ITEMS = 6

_Value = TypeVar("_Value")

Split = Literal["train", "held-out", "unseen"]
"""Splits of scenes. An `unseen` scene has a pair of colour and shape that no `train` or `held-out` scene has."""


@dataclass(frozen=True)
class Shape:
    """A coloured shape in a cell of the grid."""

    cell: int
    color: str
    shape: str
    size: str


@dataclass(frozen=True)
class Digit:
    """A handwritten digit in a cell; `sample` is its index in scikit-learn's `load_digits`."""

    cell: int
    value: int
    color: str
    sample: int


@dataclass(frozen=True)
class PrintedWord:
    """A printed word, which fills a row of the grid."""

    row: int
    text: str
    color: str
    font: str
    capitals: bool


Item = Shape | Digit | PrintedWord


@dataclass(frozen=True)
class GridScene:
    """The items of a picture, in reading order."""

    items: tuple[Item, ...]
    dark: bool
    """Whether the background is dark; nothing black is drawn on it."""

    @property
    def shapes(self) -> list[Shape]:
        """The coloured shapes."""
        return [item for item in self.items if isinstance(item, Shape)]

    @property
    def digits(self) -> list[Digit]:
        """The handwritten digits."""
        return [item for item in self.items if isinstance(item, Digit)]

    @property
    def words(self) -> list[PrintedWord]:
        """The printed words."""
        return [item for item in self.items if isinstance(item, PrintedWord)]


def pair_is_held_out(color: str, shape: str) -> bool:
    """Whether no training scene has this pair: each colour and each shape lacks one partner."""
    return (3 * COLORS.index(color) + 1) % len(SHAPES) == SHAPES.index(shape)


def font_is_held_out(word: str, font: str) -> bool:
    """Whether no training scene has this word in this font: each word lacks two of the fonts."""
    return (WORDS.index(word) + FONTS.index(font)) % 8 == 0


def layout_is_held_out(items: Sequence[Item]) -> bool:
    """Whether these items at these places are held out, as one scene in ten is."""
    shown = [
        (item.cell, item.color, item.shape, item.size)
        if isinstance(item, Shape)
        else (item.cell, item.value, item.color)
        if isinstance(item, Digit)
        else (item.row, item.text, item.color)
        for item in items
    ]
    return zlib.crc32(repr(sorted(shown, key=repr)).encode()) % 10 == 0


USUAL_WORDS, MANY_WORDS = (0.64, 0.28, 0.08), (0.25, 0.5, 0.25)
"""Probabilities of none, one and two words in a scene. Of all tasks, reading needs the most examples."""


class Sampler:
    """Draws scenes of one split.

    Args:
        split: split of the scenes.
        digits: value of each handwritten sample, [`DIGIT_SAMPLES`].
        words: probabilities of none, one and two words.
    """

    def __init__(self, split: Split, digits: Sequence[int], words: tuple[float, float, float] = USUAL_WORDS) -> None:
        self.split = split
        self._words = words
        trained = split == "train"
        chosen = range(TRAINED_DIGITS) if trained else range(TRAINED_DIGITS, DIGIT_SAMPLES)
        self._digits: list[list[int]] = [[index for index in chosen if digits[index] == value] for value in range(10)]
        self._fonts = {word: [font for font in FONTS if font_is_held_out(word, font) is not trained] for word in WORDS}
        self._pairs = [(color, shape) for color in COLORS for shape in SHAPES if not pair_is_held_out(color, shape)]
        self._new_pairs = [(color, shape) for color in COLORS for shape in SHAPES if pair_is_held_out(color, shape)]

    def scene(self, rng: np.random.Generator) -> GridScene:
        """Draw a scene of the split, which follows from `rng` alone."""
        while True:
            scene = self._draw(rng)
            if layout_is_held_out(scene.items) is (self.split != "train"):
                return scene

    def _draw(self, rng: np.random.Generator) -> GridScene:
        dark = rng.random() < 0.25
        colors = [color for color in COLORS if not (dark and color == "black")]
        words = int(rng.choice(3, p=self._words))
        digits = int(rng.choice(3, p=(0.68, 0.24, 0.08)))
        fewest = 1 if self.split == "unseen" or words + digits == 0 else 0
        shapes = int(rng.integers(fewest, 1 + (MOST_ITEMS if words + digits == 0 else 3)))
        rows = rng.permutation(3)[:words].tolist()
        free = [cell for cell in range(9) if cell // 3 not in rows]
        cells = (
            [CENTER] if shapes + digits == 1 and not words and rng.random() < 0.3 else rng.permutation(free).tolist()
        )
        items: list[Item] = [self._word(rng, row, colors) for row in rows]
        items += [self._digit(rng, cell, colors) for cell in cells[:digits]]
        items += self._shapes(rng, cells[digits : digits + shapes], colors)
        return GridScene(tuple(sorted(items, key=_place)), dark)

    def _word(self, rng: np.random.Generator, row: int, colors: Sequence[str]) -> PrintedWord:
        word = _one(rng, WORDS)
        return PrintedWord(row, word, _one(rng, colors), _one(rng, self._fonts[word]), bool(rng.random() < 0.3))

    def _digit(self, rng: np.random.Generator, cell: int, colors: Sequence[str]) -> Digit:
        value = int(rng.integers(10))
        return Digit(cell, value, _one(rng, colors), _one(rng, self._digits[value]))

    def _shapes(self, rng: np.random.Generator, cells: Sequence[int], colors: Sequence[str]) -> list[Shape]:
        pairs = [pair for pair in self._pairs if pair[0] in colors]
        if rng.random() < 0.4:  # few kinds, so that there is something to count
            kinds = 1 + int(rng.integers(3))
            pairs = [pairs[int(index)] for index in rng.choice(len(pairs), kinds, replace=False)]
        drawn = [_one(rng, pairs) for _ in cells]
        if self.split == "unseen" and cells:
            new = [pair for pair in self._new_pairs if pair[0] in colors]
            drawn = [_one(rng, new) if index == 0 or rng.random() < 0.3 else pair for index, pair in enumerate(drawn)]
        return [Shape(cell, *pair, _one(rng, SIZES)) for cell, pair in zip(cells, drawn, strict=True)]


def _place(item: Item) -> int:
    return 3 * item.row if isinstance(item, PrintedWord) else item.cell


def _one(rng: np.random.Generator, values: Sequence[_Value]) -> _Value:
    return values[int(rng.integers(len(values)))]
