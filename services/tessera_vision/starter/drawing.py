"""Draws scenes: shapes, scikit-learn's handwritten digits and words in matplotlib's fonts, on a canvas of any size.

Needs scikit-learn and matplotlib, so only training, judging and demonstrations import it. Knows nothing about models.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from tessera_vision.starter.data import CENTER, FONTS, Digit, GridScene, PrintedWord, Shape

SIDE = 72
"""Width and height, in pixels, of the picture that the model gets; other canvases are scaled to it."""
HUES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "red": ((-8, 8), (0.75, 1.0), (0.75, 1.0)),
    "orange": ((23, 38), (0.8, 1.0), (0.88, 1.0)),
    "yellow": ((50, 61), (0.7, 1.0), (0.88, 1.0)),
    "green": ((95, 148), (0.6, 1.0), (0.42, 0.95)),
    "blue": ((208, 242), (0.6, 1.0), (0.6, 1.0)),
    "purple": ((272, 296), (0.5, 1.0), (0.42, 0.75)),
    "pink": ((322, 351), (0.25, 0.58), (0.95, 1.0)),
    "black": ((0, 360), (0.0, 0.5), (0.0, 0.14)),
}
"""Ranges of each colour: hue in degrees, saturation and value from 0 to 1."""
DIAMETERS = {"small": (10.0, 13.5), "large": (18.0, 23.0)}
"""Range of the diameter of a shape, in 72nds of the picture's shorter side."""
ALONE = (24.0, 60.0)
"""Range of the diameter of a large shape or a digit that is alone at the centre, in the same unit."""
_FINE, _COARSE, _VARIANTS = 320, 96, 8


@dataclass(frozen=True)
class PartBox:
    """The box of a part of an item, for dense supervision, in fractions of the picture's width and height."""

    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""
    color: str
    what: str
    """The part: the name of a shape, a digit, or a letter."""


@dataclass(frozen=True)
class Drawing:
    """A picture, uint8 [height, width, 3], with the boxes of its parts."""

    pixels: NDArray[np.uint8]
    marks: list[PartBox]


class Painter:
    """Draws scenes. Caches outlines and fonts between pictures."""

    def __init__(self) -> None:
        data = load_digits()
        self.values: list[int] = [int(value) for value in data.target]
        """The value of each handwritten sample."""
        self._digits = [_mask(Image.fromarray(_bytes(image * 16)), (64, 64)) for image in data.images]
        self._outlines = {
            shape: [_outline(shape, variant) for variant in range(_VARIANTS)]
            for shape in ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "ring")
        }
        self._paths = {name: Path(mpl.get_data_path(), "fonts", "ttf", f"{name}.ttf") for name in FONTS}
        self._fonts: dict[tuple[str, int], ImageFont.FreeTypeFont] = {}

    def draw(self, scene: GridScene, rng: np.random.Generator, *, native: float = 0.5) -> Drawing:
        """Draw `scene`. A fraction `native` of canvases has 72x72 pixels; others have up to 228 pixels a side."""
        width = height = SIDE
        if rng.random() >= native:
            width, height = (
                round(float(side)) for side in SIDE * np.exp(rng.uniform(0, 0.8) + rng.uniform(0, 0.35, 2))
            )
        canvas = np.empty((height, width, 3), np.float32)
        canvas[:] = _background(rng, dark=scene.dark)
        alone = len(scene.items) == 1 and rng.random() < 0.5
        marks: list[PartBox] = []
        for item in scene.items:
            ink = _ink(rng, item.color)
            if isinstance(item, PrintedWord):
                marks += self._word(canvas, item, ink, rng)
            else:
                marks.append(self._patch(canvas, item, ink, rng, alone=alone))
        if rng.random() < 0.3:
            canvas += np.float32(rng.uniform(1, 7)) * rng.standard_normal(canvas.shape, np.float32)
        return Drawing(_bytes(canvas), marks)

    def _patch(
        self,
        canvas: NDArray[np.float32],
        item: Shape | Digit,
        ink: NDArray[np.float32],
        rng: np.random.Generator,
        *,
        alone: bool,
    ) -> PartBox:
        height, width = canvas.shape[:2]
        unit = min(height, width) / SIDE
        if isinstance(item, Shape):
            low, high = DIAMETERS[item.size]
        else:
            low, high = 17.0, 23.5
        if alone and item.cell == CENTER and not (isinstance(item, Shape) and item.size == "small"):
            low, high = ALONE
        size = rng.uniform(low, high) * unit
        sides = [max(4, round(float(size * stretch))) for stretch in rng.uniform(0.94, 1.06, 2)]
        place = []
        for side, whole, index in ((sides[0], width, item.cell % 3), (sides[1], height, item.cell // 3)):
            room = max(0.0, min(0.16 * whole, (whole / 3 - side) / 2 + 0.02 * whole))
            middle = (index + 0.5) * whole / 3 + rng.uniform(-room, room)
            place.append(round(float(np.clip(middle - side / 2, 0, whole - side))))
        if isinstance(item, Shape):
            mask = self._outlines[item.shape][int(rng.integers(_VARIANTS))][int(max(sides) > 0.7 * _COARSE)]
            what = item.shape
        else:
            mask, what = self._digits[item.sample], str(item.value)
        _blend(canvas, mask.resize((sides[0], sides[1]), Image.Resampling.BILINEAR), place, ink)
        box = (place[0] / width, place[1] / height, (place[0] + sides[0]) / width, (place[1] + sides[1]) / height)
        return PartBox(box, item.color, what)

    def _word(
        self, canvas: NDArray[np.float32], item: PrintedWord, ink: NDArray[np.float32], rng: np.random.Generator
    ) -> list[PartBox]:
        height, width = canvas.shape[:2]
        text = item.text.upper() if item.capitals else item.text
        points = rng.uniform(13, 21) * height / SIDE
        font = self._font(item.font, round(points))
        if (long := font.getlength(text)) > 0.93 * width:
            font = self._font(item.font, max(6, math.floor(points * 0.93 * width / long)))
        left, top, right, bottom = (int(value) for value in font.getbbox(text))
        size = (right - left, bottom - top)
        image = Image.new("L", size)
        ImageDraw.Draw(image).text((-left, -top), text, 255, font)
        x = round(float(rng.uniform(0, max(1, width - size[0]))))
        room = 0.15 * height
        middle = (item.row + 0.5) * height / 3 + rng.uniform(-1, 1) * max(
            0.0, min(room, (height / 3 - size[1]) / 2 + 0.01 * height)
        )
        y = round(float(np.clip(middle - size[1] / 2, 0, max(0, height - size[1]))))
        _blend(canvas, image, [x, y], ink)
        ends = [x - left + font.getlength(text[:count]) for count in range(len(text) + 1)]
        return [
            PartBox((start / width, y / height, end / width, (y + size[1]) / height), item.color, letter)
            for start, end, letter in zip(ends, ends[1:], item.text, strict=False)
        ]

    def _font(self, name: str, points: int) -> ImageFont.FreeTypeFont:
        if (name, points) not in self._fonts:
            self._fonts[name, points] = ImageFont.truetype(str(self._paths[name]), points)
        return self._fonts[name, points]


def _blend(canvas: NDArray[np.float32], mask: Image.Image, place: list[int], ink: NDArray[np.float32]) -> None:
    x, y = place
    region = canvas[y : y + mask.height, x : x + mask.width]
    share = np.asarray(mask, dtype=np.float32)[: region.shape[0], : region.shape[1], None] / 255
    region += share * (ink - region)


def _bytes(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    rounded: NDArray[np.uint8] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _mask(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image.resize(size, Image.Resampling.BICUBIC)


def _ink(rng: np.random.Generator, color: str) -> NDArray[np.float32]:
    hue, saturation, value = (float(rng.uniform(low, high)) for low, high in HUES[color])
    return np.array(colorsys.hsv_to_rgb(hue % 360 / 360, saturation, value), np.float32) * 255


def _background(rng: np.random.Generator, *, dark: bool) -> NDArray[np.float32]:
    if dark:
        low, high, tint = 0.0, 0.19, 0.5
    elif rng.random() < 0.5:
        return np.full(3, 255, np.float32)
    else:
        low, high, tint = 0.86, 1.0, 0.12
    color = colorsys.hsv_to_rgb(float(rng.random()), float(rng.uniform(0, tint)), float(rng.uniform(low, high)))
    return np.array(color, np.float32) * 255


def _outline(shape: str, variant: int) -> tuple[Image.Image, Image.Image]:
    """A shape that fills its square, as a coarse and a fine mask; variants differ in rotation and proportion."""
    share = variant / (_VARIANTS - 1)
    size = 2 * _FINE
    image = Image.new("L", (size, size))
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((0, 0, size, size), 255)
    elif shape == "ring":
        wall = size * (0.13 + 0.12 * share)
        draw.ellipse((0, 0, size, size), 255)
        draw.ellipse((wall, wall, size - wall, size - wall), 0)
    else:
        points = _rotated(_corners(shape, share), 0 if variant < _VARIANTS // 2 else math.radians(16 * share - 12))
        draw.polygon([(float(x), float(y)) for x, y in points * size], 255)
    fine = image.resize((_FINE, _FINE), Image.Resampling.BOX)
    return fine.resize((_COARSE, _COARSE), Image.Resampling.BOX), fine


def _corners(shape: str, share: float) -> NDArray[np.float64]:
    """The corners of a shape around the origin; `share`, 0 to 1, lies between its thinnest and its thickest form."""
    if shape == "square":
        return np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], float)
    if shape == "diamond":
        return np.array([(0, -1), (0.8 + 0.2 * share, 0), (0, 1), (-0.8 - 0.2 * share, 0)])
    if shape == "triangle":
        return np.array([(0, -1), (1, 0.75 + 0.25 * share), (-1, 0.75 + 0.25 * share)])
    if shape == "cross":
        arm = 0.26 + 0.14 * share
        quarter = [(arm, -1), (arm, -arm), (1, -arm)]
        corners = [(x, y) for x, y in quarter]
        for _ in range(3):
            quarter = [(-y, x) for x, y in quarter]
            corners += quarter
        return np.array(corners)
    if shape == "star":
        angles = np.arange(10) * math.pi / 5
        radii = np.where(np.arange(10) % 2, 0.38 + 0.1 * share, 1.0)
        return np.stack([radii * np.sin(angles), -radii * np.cos(angles)], axis=1)
    t = np.linspace(0, 2 * math.pi, 120)  # the usual heart curve
    return np.stack(
        [16 * np.sin(t) ** 3, -13 * np.cos(t) + 5 * np.cos(2 * t) + 2 * np.cos(3 * t) + np.cos(4 * t)], axis=1
    )


def _rotated(points: NDArray[np.float64], angle: float) -> NDArray[np.float64]:
    """The points, rotated by `angle` in radians and scaled to fill the unit square."""
    sine, cosine = math.sin(angle), math.cos(angle)
    turned = points @ np.array([(cosine, sine), (-sine, cosine)])
    low, high = turned.min(axis=0), turned.max(axis=0)
    scaled: NDArray[np.float64] = (turned - low) / (high - low)
    return scaled


def seen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture as the model's processor scales it, first the longer side to 72, then both; uint8 [72, 72, 3]."""
    height, width = pixels.shape[:2]
    if (height, width) == (SIDE, SIDE):
        return pixels
    longer = max(height, width)
    first = [max(1, int(side / longer * SIDE)) for side in (width, height)]
    image = Image.fromarray(pixels).resize((first[0] + first[0] % 2, first[1] + first[1] % 2), Image.Resampling.LANCZOS)
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
