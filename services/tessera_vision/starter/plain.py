"""Draws pictures with Pillow's own ellipses and polygons in named colours, 160 to 400 pixels a side.

They judge `scenes-vision` without any drawing code of its training. Knows nothing about the model.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw

from tessera_vision.starter.questions import SceneQuestion

COLORS = {
    "red": ("red", "crimson", "firebrick"),
    "orange": ("orange", "darkorange"),
    "yellow": ("yellow", "gold"),
    "green": ("green", "forestgreen", "limegreen"),
    "blue": ("blue", "royalblue", "mediumblue"),
    "purple": ("purple", "darkviolet", "darkorchid"),
    "pink": ("pink", "hotpink", "lightpink"),
    "black": ("black",),
}
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring")
PLACES = {
    (column, row): "center" if (column, row) == (1, 1) else f"{above} {beside}"
    for row, above in enumerate(("top", "middle", "bottom"))
    for column, beside in enumerate(("left", "center", "right"))
}


def plain_question(rng: np.random.Generator) -> tuple[Image.Image, SceneQuestion]:
    """A picture of one to three shapes, all of different form and colour, and a question about one of them."""
    side = int(rng.integers(160, 401))
    picture = Image.new("RGB", (side, side), str(rng.choice(["white", "whitesmoke", "ivory", "aliceblue"])))
    draw = ImageDraw.Draw(picture)
    count = int(rng.integers(1, 4))
    colors = rng.choice(list(COLORS), count, replace=False)
    shapes = rng.choice(SHAPES, count, replace=False)
    places = rng.permutation(list(PLACES))[:count]
    for color, shape, (column, row) in zip(colors, shapes, places, strict=True):
        middle = ((column + 0.5) * side / 3, (row + 0.5) * side / 3)
        _draw(draw, str(shape), middle, side * rng.uniform(0.13, 0.155), str(rng.choice(COLORS[str(color)])))
    color, shape, place = str(colors[0]), str(shapes[0]), PLACES[int(places[0][0]), int(places[0][1])]
    asked = (
        SceneQuestion("identify", f"What is at the {place}?", f"a large {color} {shape}"),
        SceneQuestion("identify", f"What color is the {shape}?", color),
        SceneQuestion("locate", f"Where is the {color} {shape}?", f"at the {place}"),
        SceneQuestion("count", "How many shapes are there?", ("one", "two", "three")[count - 1]),
        SceneQuestion("yes/no", f"Is there {'an' if color[0] == 'o' else 'a'} {color} {shape}?", "yes"),
    )
    return picture, asked[int(rng.integers(len(asked)))]


def _draw(draw: ImageDraw.ImageDraw, shape: str, middle: tuple[float, float], radius: float, color: str) -> None:
    x, y = middle
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        draw.ellipse(box, fill=color)
    elif shape == "ring":
        draw.ellipse(box, outline=color, width=max(3, round(radius * 0.4)))
    elif shape == "square":
        draw.rectangle(box, fill=color)
    elif shape == "cross":
        draw.line((x - radius, y, x + radius, y), color, round(radius * 0.65))
        draw.line((x, y - radius, x, y + radius), color, round(radius * 0.65))
    elif shape == "star":
        draw.polygon(
            [
                (
                    x + (radius if turn % 2 == 0 else 0.42 * radius) * math.sin(turn * math.pi / 5),
                    y - (radius if turn % 2 == 0 else 0.42 * radius) * math.cos(turn * math.pi / 5),
                )
                for turn in range(10)
            ],
            fill=color,
        )
    else:
        corners = {"triangle": ((0, -1), (1, 1), (-1, 1)), "diamond": ((0, -1), (1, 0), (0, 1), (-1, 0))}[shape]
        draw.polygon([(x + radius * dx, y + radius * dy) for dx, dy in corners], fill=color)
