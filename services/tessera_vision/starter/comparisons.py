"""Questions about two or three pictures at once, each with its one right answer (see `questions`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera_vision.starter.data import COLORS, SHAPES, GridScene
from tessera_vision.starter.naming import ShapeKind, article, pick, spots
from tessera_vision.starter.questions import ORDINALS, SceneQuestion, ask, described, description

TRIES = 60
"""Draws of pictures that are tried for an answer that was chosen first, so that answers are balanced."""


@dataclass(frozen=True)
class Comparison:
    """A question about several scenes, with the numbers of the scenes in their order."""

    scenes: tuple[int, ...]
    question: SceneQuestion


def compare(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    """Draw a question about some of `scenes`; None when no scenes fit the question."""
    kind = int(rng.integers(5))
    if kind == 0:
        return _which_has_more(rng, scenes)
    if kind == 1:
        return _which_has(rng, scenes)
    if kind == 2:
        return _do_both(rng, scenes)
    if kind == 3:
        return _is_it_the_same(rng, scenes)
    return _in_one_of_them(rng, scenes)


def _which_has_more(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    kind = (
        ShapeKind(),
        ShapeKind(),
        ShapeKind(color=pick(rng, *COLORS)),
        ShapeKind(shape=pick(rng, *SHAPES)),
    )[int(rng.integers(4))]
    wanted = int(rng.integers(3)) - 1
    for _ in range(TRIES):
        pair = _draw(rng, scenes, 2)
        one, two = (sum(shape in kind for shape in scenes[index].shapes) for index in pair)
        if (one > two) - (one < two) == wanted and (wanted or one or rng.random() < 0.1):
            many = kind.named(plural=True)
            asked = pick(
                rng,
                f"Which image has more {many}?",
                f"Which picture shows more {many}?",
                f"In which image are there more {many}?",
            )
            answer = {1: "the first image", -1: "the second image", 0: "both have the same number"}[wanted]
            cells = tuple(
                9 * place + cell
                for place, index in enumerate(pair)
                for cell in spots(*(shape for shape in scenes[index].shapes if shape in kind))
            )
            return Comparison(pair, SceneQuestion("compare", asked, answer, (cells,)))
    return None


def _which_has(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    numbers = _draw(rng, scenes, 2 + int(rng.random() < 0.4))
    model = scenes[numbers[int(rng.integers(len(numbers)))]]
    if not model.items:
        return None
    names = _names(model)
    name = names[int(rng.integers(len(names)))]
    having = [place for place, index in enumerate(numbers) if name in _names(scenes[index])]
    if len(having) != 1:
        return None
    asked = pick(
        rng,
        f"Which image has {name}?",
        f"Which picture shows {name}?",
        f"In which image do you see {name}?",
        f"Which of the images contains {name}?",
    )
    return Comparison(numbers, SceneQuestion("compare", asked, f"the {ORDINALS[having[0]]} image"))


def _do_both(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    wanted = rng.random() < 0.5
    for _ in range(TRIES):
        pair = _draw(rng, scenes, 2)
        names = [_names(scenes[index]) for index in pair]
        if not names[0] or not names[1]:
            continue
        either = sorted(set(names[0]) & set(names[1])) if wanted else sorted(set(names[0]) ^ set(names[1]))
        if either:
            name = either[int(rng.integers(len(either)))]
            asked = pick(
                rng,
                f"Do both images show {name}?",
                f"Do both pictures have {name}?",
                f"Is there {name} in both images?",
            )
            return Comparison(pair, SceneQuestion("compare", asked, "yes" if wanted else "no"))
    return None


def _is_it_the_same(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    what = pick(rng, "word", "handwritten digit", "number of shapes")
    known: list[str | int | None] = [
        (scene.words[0].text if len(scene.words) == 1 else None)
        if what == "word"
        else (scene.digits[0].value if len(scene.digits) == 1 else None)
        if what == "handwritten digit"
        else len(scene.shapes)
        for scene in scenes
    ]
    fitting = [index for index, value in enumerate(known) if value is not None]
    wanted = rng.random() < 0.5
    if len(fitting) < 2:
        return None
    for _ in range(TRIES):
        one = fitting[int(rng.integers(len(fitting)))]
        others = [index for index in fitting if index != one and (known[index] == known[one]) is bool(wanted)]
        if others:
            pair = (one, others[int(rng.integers(len(others)))])
            asked = pick(
                rng,
                f"Do both images show the same {what}?",
                f"Do the two images have the same {what}?",
                f"Is the {what} the same in both images?",
            )
            return Comparison(pair, SceneQuestion("compare", asked, "yes" if wanted else "no"))
    return None


def _in_one_of_them(rng: np.random.Generator, scenes: Sequence[GridScene]) -> Comparison | None:
    numbers = _draw(rng, scenes, 2 + int(rng.random() < 0.4))
    which = int(rng.integers(len(numbers)))
    scene, name = scenes[numbers[which]], ORDINALS[which]
    if rng.random() < 0.3:
        asked = pick(rng, f"Describe the {name} image.", f"What does the {name} picture show?")
        cells = _moved(described(scene), which)
        return Comparison(numbers, SceneQuestion("compare", asked, description(scene), cells))
    question = ask(rng, scene, pick(rng, "count", "locate", "identify", "read", "yes/no"))
    if question is None or "image" in question.text or "picture" in question.text:
        return None
    text = question.text[0].lower() + question.text[1:]
    cells = _moved(question.cells, which)
    return Comparison(numbers, SceneQuestion("compare", f"In the {name} image, {text}", question.answer, cells))


def _moved(cells: tuple[tuple[int, ...], ...], which: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(9 * which + cell for cell in some) for some in cells)


def _names(scene: GridScene) -> list[str]:
    """Names, with an article, of everything that is on a picture."""
    names = {name for shape in scene.shapes for name in _kinds_of(shape.color, shape.shape)}
    names |= {"a handwritten digit" for _ in scene.digits} | {f"a handwritten {digit.value}" for digit in scene.digits}
    names |= {f"the word {word.text}" for word in scene.words}
    return sorted(names | {"a word" for _ in scene.words})


def _kinds_of(color: str, shape: str) -> set[str]:
    return {
        article(kind.named())
        for kind in (ShapeKind(shape=shape), ShapeKind(color=color), ShapeKind(color=color, shape=shape))
    }


def _draw(rng: np.random.Generator, scenes: Sequence[GridScene], count: int) -> tuple[int, ...]:
    return tuple(int(index) for index in rng.choice(len(scenes), count, replace=False))
