"""Judges the starter: held-out questions through the engine that serves, and the load of the experts.

Half of the questions of each task have trained phrasings and half have held-out ones; the operands of all are held out
(see `data`). Knows nothing about how an answer is worked out (see `judge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tessera.sequence.runner.sequence_runner import SequenceRunner
from tessera.starters.recipe import Evaluation, Measure
from tessera_text.starter import data
from tessera_text.starter.data import ArithmeticQuestion
from tessera_text.starter.in_process import InProcessModel
from tessera_text.starter.judge import is_right

SAMPLES = 100
"""Questions of each task, when the caller names no number."""
MOST_TOKENS = 80
SHOWN = 10
"""Wrong answers that are reported, roughly."""
RIGHT = 90.0
"""Lowest percentage of questions that must be answered exactly."""
ALIVE = 0.2
"""Lowest load of the least used expert of a layer, as a fraction of an even load."""


@dataclass(frozen=True)
class ModelAnswers:
    """The answers of a model, and the load of its experts meanwhile.

    Attributes:
        texts: one answer for each question.
        load_LE: share of the tokens' choices that went to each expert of each layer; a layer's shares sum to 1.
    """

    texts: list[str]
    load_LE: torch.Tensor


def held_out(seed: int, samples: int) -> list[ArithmeticQuestion]:
    """Held-out questions of all tasks, `samples` of each; every other one has a held-out phrasing."""
    random = np.random.default_rng((seed, samples))
    return [
        data.draw(random, task, "held_out", phrasing="held_out" if number % 2 else "train")
        for task in data.TASKS
        for number in range(samples)
    ]


def answer(directory: Path, texts: Sequence[str], device: str = "cpu") -> ModelAnswers:
    """Ask the model in `directory`, and count how often each expert is chosen."""
    asked = InProcessModel(directory, device)
    counts_LE = _count_choices(asked.runner)
    answers = asked.answers(texts, max_tokens=MOST_TOKENS)
    return ModelAnswers(answers, counts_LE / counts_LE.sum(dim=1, keepdim=True))


def _count_choices(runner: SequenceRunner) -> torch.Tensor:
    """Hook the routers, and return a tensor that counts how often each expert of each layer is chosen."""
    config = runner.model.config
    counts_LE = torch.zeros(config.num_hidden_layers, config.num_experts, dtype=torch.float64)

    def count(layer: int, outputs: tuple[torch.Tensor, ...]) -> None:
        counts_LE[layer] += torch.bincount(outputs[2].flatten().cpu(), minlength=config.num_experts)

    for layer, block in enumerate(runner.model.model.layers):
        block.mlp.gate.register_forward_hook(lambda _module, _inputs, outputs, layer=layer: count(layer, outputs))
    return counts_LE


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Judge the model in `directory`, as `Recipe.evaluate`; `samples` counts the questions of each task."""
    questions = held_out(evaluation.seed, evaluation.samples or SAMPLES)
    answers = answer(directory, [question.text for question in questions], evaluation.device)
    right = [is_right(question.ask, text) for question, text in zip(questions, answers.texts, strict=True)]
    wrong = [index for index, good in enumerate(right) if not good]
    for index in wrong[:: max(1, len(wrong) // SHOWN)]:
        evaluation.report(f"one of {len(wrong)} that are wrong: {questions[index].text!r} got {answers.texts[index]!r}")
    for layer, load_E in enumerate(answers.load_LE.tolist()):
        evaluation.report(f"load of the experts of layer {layer}: {' '.join(f'{100 * load:.1f} %' for load in load_E)}")
    return [*_exactness(questions, right), *_load(answers.load_LE)]


def _exactness(questions: list[ArithmeticQuestion], right: list[bool]) -> list[Measure]:
    def share(name: str, chosen: list[bool], at_least: float | None = None) -> Measure:
        percent = 100 * sum(chosen) / max(1, len(chosen))
        return Measure(name=name, value=percent, unit="%", samples=len(chosen), at_least=at_least)

    judged = list(zip(questions, right, strict=True))
    answered = [(question, good) for question, good in judged if question.task != "other"]
    strange = [good for question, good in answered if any(map(data.number_is_held_out, question.numbers))]
    known = [good for question, good in answered if not any(map(data.number_is_held_out, question.numbers))]
    rephrased = [good for index, (question, good) in enumerate(judged) if question.task != "other" and index % 2]
    tasks = [task for task in data.TASKS if task != "other"]
    return [
        share("exact answers", [good for _, good in answered], RIGHT),
        share("exact, operands never seen", strange),
        share("exact, combinations of operands never seen", known),
        share("exact, phrasings never seen", rephrased),
        *(share(f"exact, {task}", [good for question, good in answered if question.task == task]) for task in tasks),
        share("other topics declined", [good for question, good in judged if question.task == "other"], RIGHT),
    ]


def _load(load_LE: torch.Tensor) -> list[Measure]:
    """Measures of the least and the most used expert of each layer; an even share is 100 % / number of experts."""
    least = 100 * ALIVE / load_LE.shape[1]
    measures = []
    for layer, load_E in enumerate(load_LE):
        lowest, highest = 100 * float(load_E.min()), 100 * float(load_E.max())
        measures.append(Measure(name=f"least used expert, layer {layer}", value=lowest, unit="%", at_least=least))
        measures.append(Measure(name=f"most used expert, layer {layer}", value=highest, unit="%"))
    return measures
