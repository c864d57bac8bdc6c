"""Questions about scenes in varied English, and the one right answer to each.

Tasks: describe, count, locate, read, compare, yes/no, and identify (what is there, of which colour, shape and size).
An answer follows from the scene's description. Knows nothing about pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tessera_vision.starter.data import CELLS, COLORS, SHAPES, SIZES, WORDS, GridScene, Item, PrintedWord, Shape
from tessera_vision.starter.naming import (
    ShapeKind,
    a_kind,
    another,
    article,
    at,
    color_with,
    phrase,
    pick,
    place,
    spots,
    unique_name,
    yes,
)

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
ORDINALS = ("first", "second", "third")
Made = tuple[str, str, tuple[int, ...]]
"""A question, its answer, and the cells that it is about."""
TASKS = ("describe", "count", "locate", "identify", "read", "yes/no", "compare")


@dataclass(frozen=True)
class SceneQuestion:
    """A question about one or more pictures, with its answer."""

    task: str
    text: str
    answer: str
    cells: tuple[tuple[int, ...], ...] = ((),)
    """The cells that show each word of the answer; a single entry holds for all words.

    Cells are numbered across pictures.
    """


def description(scene: GridScene) -> str:
    """A sentence that lists all items in reading order."""
    parts = [f"{phrase(item)} {place(item)}" for item in scene.items]
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return text[0].upper() + text[1:] + "."


def described(scene: GridScene) -> tuple[tuple[int, ...], ...]:
    """The cells that show each word and comma of the description; words between items have those of the next item."""
    cells: list[tuple[int, ...]] = []
    for index, item in enumerate(scene.items):
        cells += [spots(item)] * (len(f"{phrase(item)} {place(item)}".split()) + (index > 0))
    return (*cells, ())


def ask(rng: np.random.Generator, scene: GridScene, task: str) -> SceneQuestion | None:
    """Draw a question of `task` about one picture; None when the scene does not allow one."""
    makers: dict[str, Sequence[Callable[[np.random.Generator, GridScene], Made | None]]] = {
        "describe": [_describe],
        "count": [_count],
        "locate": [_locate],
        "identify": [_cell, _attribute],
        "read": [_read_words, _read_digits],
        "yes/no": [_exists, _exists, _is_it, _relation, _more],
    }
    chosen = makers[task][int(rng.integers(len(makers[task])))]
    made = chosen(rng, scene)
    if made is None:
        return None
    text, answer, cells = made
    if chosen is _describe:
        return SceneQuestion(task, text, answer, described(scene))
    both = chosen in {_read_words, _read_digits} and " " in answer
    return SceneQuestion(task, text, answer, tuple(spots(item) for item in _read_from(scene)) if both else (cells,))


def _describe(rng: np.random.Generator, scene: GridScene) -> Made:
    asked = pick(
        rng,
        "Describe the image.",
        "Describe this picture.",
        "Describe the picture in detail.",
        "What is in this image?",
        "What do you see?",
        "What does the picture show?",
        "Describe what you see.",
        "Give a full description of the image.",
        "What's in this picture?",
        "Describe",
    )
    return asked, description(scene), ()


def _count(rng: np.random.Generator, scene: GridScene) -> Made:
    kind = a_kind(rng, scene)
    if rng.random() < 0.5:  # else most answers would be zero or one
        kind = max(kind, a_kind(rng, scene), key=lambda one: sum(shape in one for shape in scene.shapes))
    many = kind.named(plural=True)
    asked = pick(
        rng,
        f"How many {many} are there?",
        f"How many {many} are in the image?",
        f"Count the {many}.",
        f"How many {many} do you see?",
        f"How many {many} does the picture show?",
        f"What is the number of {many}?",
        f"Tell me how many {many} there are.",
        f"How many {many} can you see in this picture?",
    )
    found = [shape for shape in scene.shapes if shape in kind]
    return asked, NUMBERS[len(found)], spots(*found)


def _locate(rng: np.random.Generator, scene: GridScene) -> Made | None:
    if not scene.items:
        return None
    item = scene.items[int(rng.integers(len(scene.items)))]
    name = unique_name(rng, scene, item)
    if name is None:
        return None
    asked = pick(
        rng,
        f"Where is {name}?",
        f"Where in the image is {name}?",
        f"Where do you see {name}?",
        f"In which part of the picture is {name}?",
        f"Locate {name}.",
        f"What is the position of {name}?",
        f"Tell me where {name} is.",
    )
    return asked, place(item), spots(item)


def _cell(rng: np.random.Generator, scene: GridScene) -> Made | None:
    rows = {word.row for word in scene.words}
    things = {item.cell: item for item in scene.items if not isinstance(item, PrintedWord)}
    cells = [cell for cell in range(9) if cell // 3 not in rows]
    if things and rng.random() < 0.8:
        cells = sorted(things)
    if not cells:
        return None
    cell = cells[int(rng.integers(len(cells)))]
    asked = pick(
        rng,
        f"What is {at(cell)}?",
        f"What do you see {at(cell)}?",
        f"What is {at(cell)} of the image?",
        f"Which object is {at(cell)}?",
        f"What is there {at(cell)}?",
        f"What is drawn {at(cell)} of the picture?",
    )
    return asked, phrase(things[cell]) if cell in things else "nothing", (cell,)


def _attribute(rng: np.random.Generator, scene: GridScene) -> Made | None:
    if not scene.items:
        return None
    item = scene.items[int(rng.integers(len(scene.items)))]
    if not isinstance(item, Shape):
        name = unique_name(rng, scene, item)
        return None if name is None else (_color_of(rng, name), item.color, spots(item))
    wanted = pick(rng, "color", "shape", "size")
    known = {"color": item.color, "shape": item.shape, "size": item.size}
    others = [name for name in known if name != wanted]
    given = others if rng.random() < 0.4 else [others[int(rng.integers(2))]]
    kind = ShapeKind(**{name: known[name] for name in given})
    if sum(shape in kind for shape in scene.shapes) != 1:
        return None
    name = kind.named()
    if wanted == "color":
        return _color_of(rng, f"the {name}"), item.color, spots(item)
    if wanted == "shape":
        asked = pick(
            rng, f"What shape is the {name}?", f"Which shape is the {name}?", f"What kind of shape is the {name}?"
        )
        return asked, f"a {item.shape}", spots(item)
    asked = pick(rng, f"What size is the {name}?", f"How big is the {name}?", f"Is the {name} small or large?")
    return asked, item.size, spots(item)


def _color_of(rng: np.random.Generator, name: str) -> str:
    return pick(
        rng,
        f"What color is {name}?",
        f"What is the color of {name}?",
        f"Which color does {name} have?",
        f"What colour is {name}?",
        f"Tell me the color of {name}.",
    )


def _read_words(rng: np.random.Generator, scene: GridScene) -> Made | None:
    words = scene.words
    if len(words) == 1:
        asked = pick(
            rng,
            "What word is written in the image?",
            "Read the word.",
            "What does it say?",
            "Which word is this?",
            "Read the text in the picture.",
            "What is written here?",
            "What text is in the image?",
            "What is the word?",
        )
        return asked, words[0].text, spots(*words)
    if len(words) == 2:
        which = int(rng.integers(3))
        if which == 2:
            asked = pick(
                rng, "Which words are written?", "Read the words.", "What words are in the image?", "Read the text."
            )
            return asked, f"{words[0].text} {words[1].text}", ()
        name = ("upper", "lower")[which]
        asked = pick(rng, f"Read the {name} word.", f"What is the {name} word?", f"What does the {name} word say?")
        return asked, words[which].text, spots(words[which])
    return None


def _read_digits(rng: np.random.Generator, scene: GridScene) -> Made | None:
    digits = scene.digits
    if len(digits) == 1:
        asked = pick(
            rng,
            "Which digit is written?",
            "What digit is this?",
            "Read the digit.",
            "What number is written by hand?",
            "Which number do you see?",
            "Read the handwritten digit.",
            "What is the handwritten digit?",
            "What number is this?",
        )
        return asked, str(digits[0].value), spots(*digits)
    if len(digits) == 2:
        asked = pick(
            rng, "Which digits are written?", "Read the digits.", "What digits are in the image?", "Read the numbers."
        )
        return asked, f"{digits[0].value} {digits[1].value}", ()
    return None


def _exists(rng: np.random.Generator, scene: GridScene) -> Made:
    draw = rng.random()
    if draw < 0.1:
        asked = pick(rng, "Is there a word in the image?", "Is anything printed here?", "Does the picture have a word?")
        return asked, yes(bool(scene.words)), spots(*scene.words)
    if draw < 0.2:
        asked = pick(
            rng, "Is there a handwritten digit?", "Is there a digit in the image?", "Does the picture have a digit?"
        )
        return asked, yes(bool(scene.digits)), spots(*scene.digits)
    if draw < 0.3 and scene.words:
        text = scene.words[0].text if rng.random() < 0.5 else WORDS[int(rng.integers(len(WORDS)))]
        asked = pick(rng, f"Does it say {text}?", f"Is the word {text} in the image?", f"Is {text} written here?")
        return asked, yes(any(word.text == text for word in scene.words)), spots(*scene.words)
    kind = a_kind(rng, scene, plain=False)
    name = article(kind.named())
    asked = pick(
        rng,
        f"Is there {name}?",
        f"Is there {name} in the image?",
        f"Do you see {name}?",
        f"Does the picture show {name}?",
        f"Can you see {name} here?",
        f"Is {name} in this picture?",
    )
    found = [shape for shape in scene.shapes if shape in kind]
    return asked, yes(bool(found)), spots(*found)


def _is_it(rng: np.random.Generator, scene: GridScene) -> Made | None:
    shapes = scene.shapes
    if not shapes:
        return None
    item = shapes[int(rng.integers(len(shapes)))]
    if sum(other.shape == item.shape for other in shapes) != 1:
        return None
    true = rng.random() < 0.5
    if rng.random() < 0.5:
        color = item.color
        while not true and color == item.color:
            color = color_with(rng, scene, item.shape)
        asked = pick(rng, f"Is the {item.shape} {color}?", f"Is the color of the {item.shape} {color}?")
        return asked, yes(true), spots(item)
    if rng.random() < 0.5:
        size = item.size if true else another(rng, SIZES, item.size)
        return f"Is the {item.shape} {size}?", yes(true), spots(item)
    cell = item.cell if true else int(CELLS.index(another(rng, CELLS, CELLS[item.cell])))
    return f"Is the {item.shape} {at(cell)}?", yes(true), spots(item)


def _relation(rng: np.random.Generator, scene: GridScene) -> Made | None:
    shapes = scene.shapes
    if len(shapes) < 2:
        return None
    one, two = (shapes[int(index)] for index in rng.choice(len(shapes), 2, replace=False))
    names = [unique_name(rng, scene, item) for item in (one, two)]
    across = rng.random() < 0.5
    first, second = (item.cell % 3 if across else item.cell // 3 for item in (one, two))
    if None in names or first == second:
        return None
    word = pick(rng, "left of", "right of") if across else pick(rng, "above", "below")
    true = first < second if word in {"left of", "above"} else first > second
    return f"Is {names[0]} {word} {names[1]}?", yes(true), spots(one, two)


def _more(rng: np.random.Generator, scene: GridScene) -> Made | None:
    if not scene.shapes:
        return None
    if rng.random() < 0.5:
        one, two = (ShapeKind(shape=SHAPES[int(index)]) for index in rng.choice(len(SHAPES), 2, replace=False))
        if rng.random() < 0.7:
            one = ShapeKind(shape=scene.shapes[int(rng.integers(len(scene.shapes)))].shape)
    else:
        one, two = (ShapeKind(color=COLORS[int(index)]) for index in rng.choice(len(COLORS), 2, replace=False))
        if rng.random() < 0.7:
            two = ShapeKind(color=scene.shapes[int(rng.integers(len(scene.shapes)))].color)
    if one == two:
        return None
    first, second = ([shape for shape in scene.shapes if shape in kind] for kind in (one, two))
    names = [kind.named(plural=True) for kind in (one, two)]
    return f"Are there more {names[0]} than {names[1]}?", yes(len(first) > len(second)), spots(*first, *second)


def _read_from(scene: GridScene) -> Sequence[Item]:
    """The two items that a question about both of them reads."""
    return scene.words if len(scene.words) == 2 else scene.digits
