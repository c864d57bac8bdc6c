"""Judges a directory of `scenes-vision`: questions about held-out scenes through our own preprocessing and engine.

An answer is right when every character is. Pictures are sent as PNG files in data URLs, as a client sends them. There
are three kinds of pictures: held-out scenes; scenes with a pair of colour and shape that training never had, with
questions about that pair; and large pictures drawn with Pillow alone, which shares no code with the training pictures.
"""

from __future__ import annotations

import base64
import io
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tessera.sequence.start import start_sequence_engine
from tessera.settings.vision import VisionSettings
from tessera.starters.recipe import Evaluation
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import ImagePart, ImageURL, Message, Part, TextPart
from tessera.wire.engine import Failed, Generate, GeneratedTokens, Sampling
from tessera.wire.models import Measure
from tessera_vision.image_process import decode
from tessera_vision.image_processes import request_of
from tessera_vision.pipeline import Preprocessor
from tessera_vision.starter.comparisons import compare
from tessera_vision.starter.data import COLORS, SHAPES, GridScene, Sampler, pair_is_held_out
from tessera_vision.starter.drawing import Painter
from tessera_vision.starter.plain import plain_question
from tessera_vision.starter.questions import TASKS, SceneQuestion, ask

SAMPLES = 150
"""Questions of each task."""
POOL = 64
"""Scenes from which the pictures of comparisons are drawn."""
MOST_TOKENS = 128
NEW_PAIRS = tuple(f"{color} {shape}" for color in COLORS for shape in SHAPES if pair_is_held_out(color, shape))


@dataclass(frozen=True)
class Sample:
    """Pictures and a question about them."""

    pictures: tuple[NDArray[np.uint8], ...]
    question: SceneQuestion


class InProcessVisionModel:
    """A vision-language model in this process, behind our preprocessing and our engine."""

    def __init__(self, directory: Path, device: str) -> None:
        settings = self._settings = VisionSettings()
        place = cast("Literal['auto', 'cpu', 'cuda']", device)
        engine = msgspec.structs.replace(settings.engine, device=place, threads=torch.get_num_threads())
        self._tokenizer = Tokenizer(directory)
        self._preprocessor = Preprocessor(directory, settings, self._tokenizer)
        self._engine = start_sequence_engine(str(directory), engine, directory.parent, time.perf_counter())
        self._most = engine.max_waiting

    def answers(self, samples: Sequence[Sample]) -> list[str]:
        """The greedy answer to each sample."""
        tokens: dict[str, list[int]] = {str(index): [] for index in range(len(samples))}
        for start in range(0, len(samples), self._most):
            for index, sample in enumerate(samples[start : start + self._most], start):
                request = _request(sample)
                images = decode(request_of(self._preprocessor.images_of(request), self._settings))
                prompt = self._preprocessor.prompt(request, images)
                sampling = Sampling(max_tokens=MOST_TOKENS, stop_ids=self._tokenizer.stop_ids)
                self._engine.submit(
                    Generate(request_id=str(index), token_ids=prompt.token_ids, sampling=sampling, media=prompt.media)
                )
            while self._engine.has_work():
                for message in self._engine.step():
                    if isinstance(message, Failed):
                        raise RuntimeError(message.error.message)
                    if isinstance(message, GeneratedTokens):
                        tokens[message.request_id] += message.token_ids
        return [self._tokenizer.decode(tokens[str(index)]).strip() for index in range(len(samples))]


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Judge the model in `directory`, as `Recipe.evaluate`."""
    reader = InProcessVisionModel(directory, evaluation.device)
    painter = Painter()
    count = evaluation.samples or SAMPLES
    measures: list[Measure] = []
    asked = held_out(painter, np.random.default_rng([evaluation.seed, 1]), count)
    evaluation.report(f"asking {len(asked)} questions about held-out scenes")
    right = defaultdict(list)
    for sample, answer in zip(asked, reader.answers(asked), strict=True):
        right[sample.question.task].append(answer == sample.question.answer)
    everything = [value for task in TASKS for value in right[task]]
    measures.append(_share("exact answers on held-out scenes", everything, at_least=95))
    measures += [_share(f"… {task}", right[task]) for task in TASKS]
    for name, samples, bar in (
        ("exact on pairs of colour and shape never trained", unseen(painter, evaluation.seed, 2 * count), 85.0),
        ("exact on pictures drawn by other code", plain(evaluation.seed, count), None),
    ):
        evaluation.report(f"asking {len(samples)} questions: {name}")
        pairs = zip(samples, reader.answers(samples), strict=True)
        measures.append(_share(name, [answer == sample.question.answer for sample, answer in pairs], at_least=bar))
    return measures


def held_out(painter: Painter, rng: np.random.Generator, count: int) -> list[Sample]:
    """`count` samples of each task about scenes of the split `held-out`: new layouts, word fonts and writers."""
    sampler = Sampler("held-out", painter.values)
    samples: list[Sample] = []
    for task in TASKS:
        made = 0
        while made < count:
            scenes = [sampler.scene(rng) for _ in range(POOL if task == "compare" else 1)]
            if task == "compare":
                comparison = compare(rng, scenes)
                chosen, question = ((), None) if comparison is None else (comparison.scenes, comparison.question)
            else:
                chosen, question = (0,), ask(rng, scenes[0], task)
            if question is not None:
                pictures = tuple(painter.draw(scenes[index], rng).pixels for index in chosen)
                samples.append(Sample(pictures, question))
                made += 1
    return samples


def unseen(painter: Painter, seed: int, count: int) -> list[Sample]:
    """Questions that name, or are answered by, a pair of colour and shape that no training scene has."""
    rng = np.random.default_rng([seed, 2])
    sampler = Sampler("unseen", painter.values)
    tasks = ("describe", "count", "locate", "identify", "yes/no")
    samples: list[Sample] = []
    while len(samples) < count:
        scene: GridScene = sampler.scene(rng)
        question = ask(rng, scene, tasks[len(samples) % len(tasks)])
        if question is not None and any(pair in f"{question.text} {question.answer}" for pair in NEW_PAIRS):
            samples.append(Sample((painter.draw(scene, rng).pixels,), question))
    return samples


def plain(seed: int, count: int) -> list[Sample]:
    """`count` questions about pictures that Pillow alone has drawn."""
    rng = np.random.default_rng([seed, 3])
    made = (plain_question(rng) for _ in range(count))
    return [Sample((np.asarray(picture),), question) for picture, question in made]


def _request(sample: Sample) -> ChatCompletionRequest:
    parts: list[Part] = [TextPart(sample.question.text)]
    parts += [ImagePart(ImageURL(_data_url(pixels))) for pixels in sample.pictures]
    return ChatCompletionRequest(model="", messages=[Message("user", parts)])


def _data_url(pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _share(name: str, right: Sequence[bool], *, at_least: float | None = None) -> Measure:
    return Measure(
        name=name, value=100 * sum(right) / max(1, len(right)), unit="%", samples=len(right), at_least=at_least
    )
