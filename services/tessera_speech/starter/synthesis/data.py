"""Training data of the stages: spellings with the phonemes of each letter, and readings with its duration.

The sentences of both come from `sentences.training`, which has no held-out one. Knows nothing about the model.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from tessera.starters.optimize import generator
from tessera_speech.starter import sentences
from tessera_speech.starter.synthesis import readings
from tessera_speech.starter.synthesis.alignment import Aligner, chunks, letter_frames
from tessera_speech.starter.synthesis.model import VOCABULARY
from tessera_speech.starter.synthesis.teacher import PiperTeacher

SPELLINGS = 12_000
SPELLING_SEED = 7_919
FITTED = 1_000
"""Spellings from which the alignment is learned."""
LEAST_COUNT = 10
"""Fewest occurrences with which a chunk of phonemes has a label of its own."""
NO_LABEL = -100
Ints = npt.NDArray[np.int64]


class Spellings(msgspec.Struct):
    """Texts with their aligned phonemes.

    Args:
        texts: texts in lower case, with punctuation.
        spoken: the chunk of phonemes of every character.
        labels: chunks that have a label, in the order of the labels.
    """

    texts: list[str]
    spoken: list[list[str]]
    labels: list[str]


@dataclass(frozen=True)
class TrainingUtterance:
    """One training example of speech.

    Args:
        tokens: token ids [letters].
        labels: label of each letter's phonemes [letters]; `NO_LABEL` where there is none.
        frames: duration of each letter in frames [letters].
        latents: float16 [frames, channels].
        voice: number of the voice.
    """

    tokens: Ints
    labels: Ints
    frames: Ints
    latents: npt.NDArray[np.float16]
    voice: int


@dataclass(frozen=True)
class SynthesisBatch:
    """A batch of utterances, padded: tokens, labels and frames with zeros or `NO_LABEL`, latents with zeros.

    Args:
        tokens, labels, frames: int64 [batch, letters].
        latents: float32 [batch, channels, frames].
        voices: int64 [batch].
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    frames: torch.Tensor
    latents: torch.Tensor
    voices: torch.Tensor


def fitted_aligner(teacher: PiperTeacher, seed: int) -> Aligner:
    """An aligner that is fitted to the first spellings."""
    aligner = Aligner()
    texts = _texts(seed, FITTED)
    aligner.fit([(text, units) for text in texts if (units := teacher.units(text))])
    return aligner


def spellings(path: Path, teacher: PiperTeacher, aligner: Aligner, seed: int) -> Spellings:
    """All spellings: read from the file `path` when it exists, else made and written there."""
    if path.is_file():
        return msgspec.json.decode(path.read_bytes(), type=Spellings)
    kept, spoken = [], []
    counts: Counter[str] = Counter()
    for text in _texts(seed, SPELLINGS):
        units = teacher.units(text)
        aligned = aligner.align(text, units) if units else None
        if aligned is not None:
            found = chunks(units, aligned)
            kept.append(text)
            spoken.append(found)
            counts.update(found)
    labels = sorted(chunk for chunk, count in counts.items() if count >= LEAST_COUNT)
    made = Spellings(kept, spoken, labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(made))
    return made


def utterances(paths: Sequence[Path], aligner: Aligner, labels: Sequence[str], voice: int) -> list[TrainingUtterance]:
    """The readings of the files as training examples, without the few that do not align."""
    numbers = {label: number for number, label in enumerate(labels)}
    found: list[TrainingUtterance] = []
    for kept in itertools.chain.from_iterable(readings.read(path) for path in paths):
        units = kept.reading.units[:-1]
        aligned = aligner.align(kept.text, units)
        frames = None if aligned is None else letter_frames(aligned, kept.reading.frames)
        if aligned is not None and frames is not None:
            spoken = chunks(units, aligned)
            found.append(
                TrainingUtterance(
                    tokens=tokens_of(kept.text),
                    labels=np.array([numbers.get(chunk, NO_LABEL) for chunk in spoken]),
                    frames=frames,
                    latents=kept.reading.latents.astype(np.float16),
                    voice=voice,
                )
            )
    return found


def tokens_of(text: str) -> Ints:
    """Token ids of a text that consists of the model's characters."""
    return np.array([VOCABULARY[character] for character in text])


def collate(chosen: Sequence[TrainingUtterance]) -> SynthesisBatch:
    """Make a batch of utterances."""
    latents = torch.zeros(len(chosen), chosen[0].latents.shape[1], max(len(one.latents) for one in chosen))
    for row, one in enumerate(chosen):
        latents[row, :, : len(one.latents)] = torch.from_numpy(one.latents.T.astype(np.float32))
    return SynthesisBatch(
        tokens=padded([one.tokens for one in chosen], 0),
        labels=padded([one.labels for one in chosen], NO_LABEL),
        frames=padded([one.frames for one in chosen], 0),
        latents=latents,
        voices=torch.tensor([one.voice for one in chosen]),
    )


def padded(rows: Sequence[Ints], filler: int) -> torch.Tensor:
    """Rows of different lengths as one tensor, padded with `filler`."""
    made = torch.full((len(rows), max(map(len, rows))), filler)
    for index, row in enumerate(rows):
        made[index, : len(row)] = torch.from_numpy(row)
    return made


def _texts(seed: int, count: int) -> list[str]:
    """Training sentences in which most words are drawn uniformly, so that rare words are learned too."""
    return list(itertools.islice(sentences.training(generator(seed, SPELLING_SEED), natural=0.25), count))
