"""Files of the teacher's readings of training sentences, which are made once and read many times.

A file holds `SENTENCES` readings. Its sentences follow from the seed and its number, so that files can be made in any
order and in several runs. Knows neither durations of letters (`alignment`) nor batches (`data`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tessera.starters.optimize import generator
from tessera_speech.starter import sentences
from tessera_speech.starter.synthesis.teacher import PiperTeacher, TeacherReading

SENTENCES = 50
SENTENCE_SEED = 20_261_121


@dataclass(frozen=True)
class StoredReading:
    """A reading with its sentence."""

    text: str
    reading: TeacherReading


class _Index(msgspec.Struct):
    texts: list[str]
    units: list[list[str]]
    frames: list[list[int]]


def path_of(folder: Path, number: int) -> Path:
    """The path of file `number`."""
    return folder / f"readings-{number:03d}.safetensors"


def texts_of(seed: int, number: int) -> list[str]:
    """The sentences of file `number`."""
    return list(itertools.islice(sentences.training(generator(seed, SENTENCE_SEED, number)), SENTENCES))


def make(teacher: PiperTeacher, folder: Path, seed: int, number: int) -> None:
    """Make file `number`, unless it exists."""
    path = path_of(folder, number)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    spoken = [(text, teacher.units(text)) for text in texts_of(seed, number)]
    write(path, [StoredReading(text, teacher.read(units)) for text, units in spoken if units])


def write(path: Path, kept: list[StoredReading]) -> None:
    """Write a file atomically."""
    index = _Index(
        [one.text for one in kept],
        [one.reading.units for one in kept],
        [one.reading.frames.tolist() for one in kept],
    )
    joined = np.concatenate([one.reading.latents for one in kept])
    latents = np.ascontiguousarray(joined, dtype=np.float16)
    partial = path.with_suffix(".partial")
    save_file({"latents": latents}, partial, metadata={"index": msgspec.json.encode(index).decode()})
    partial.rename(path)


def read(path: Path) -> list[StoredReading]:
    """Read the readings of a file."""
    with safe_open(path, "numpy") as file:
        index = msgspec.json.decode(file.metadata()["index"], type=_Index)
    latents = load_file(path)["latents"]
    kept: list[StoredReading] = []
    start = 0
    for text, units, frames in zip(index.texts, index.units, index.frames, strict=True):
        spent = np.array(frames, dtype=np.int64)
        end = start + int(spent.sum())
        kept.append(StoredReading(text, TeacherReading(units, spent, latents[start:end].astype(np.float32))))
        start = end
    return kept
