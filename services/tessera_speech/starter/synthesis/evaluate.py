"""Judges the voices: pocketsphinx's word error on our speech and on the teacher's speech of the same sentences.

The sentences are held out by `sentences.held_out`. Our speech comes from Tessera's own text side, loading and
synthesizer. pocketsphinx (a recognizer of 2016) shares nothing with what was trained. Trains nothing.
"""

from __future__ import annotations

import importlib
import itertools
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.signal import resample_poly

from tessera.device import hardware as devices
from tessera.hub.cards import read_card
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import load_synthesizer
from tessera.starters.optimize import generator
from tessera.starters.recipe import Evaluation
from tessera.wire.models import Measure
from tessera_speech.starter import sentences
from tessera_speech.starter.synthesis.model import VOICES, adopt_decoder, untrained
from tessera_speech.starter.synthesis.pitch import revoiced
from tessera_speech.starter.synthesis.teacher import Floats, PiperTeacher, decoder_weights
from tessera_speech.starter.synthesis.voices import PERIODS, STRETCHES, teacher_speech
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.sentences import split
from tessera_speech.text.traced_text import TracedText

SAMPLES = 100
MOST_TIMES = 1.25
"""Largest word error of the model, as a multiple of that of the teacher's voices."""
MOST_REAL_TIME = 0.3
_LOUD = 8_000
_HEARD_RATE = 16_000
_RATIO = (320, 441)


class InProcessSynthesizer:
    """A synthesis model in this process, loaded as the speech service loads it."""

    def __init__(self, directory: Path, device: str) -> None:
        place = devices.choose(device, dtype="float32").place  # type: ignore[arg-type]
        self.synthesizer = load_synthesizer(directory, read_card(directory), device=place)
        self._characters = CharacterTokenizer(directory)
        self.spoken_s = 0.0
        self.spent_s = 0.0
        # On a shared CPU only processor time is meaningful; on a device only wall time is.
        self._clock = time.process_time if place.type == "cpu" else time.perf_counter

    def __call__(self, text: str, voice: int) -> Floats:
        """The samples of a spoken text."""
        began = self._clock()
        random = RandomStream(0, self.synthesizer.device)
        pieces: list[Floats] = [
            self.synthesizer.synthesize(
                self._characters.encode(sentence), voice=voice, speed=1.0, random=random
            ).numpy()
            for sentence in split(self._characters.normalize(TracedText(text)).text)
        ]
        samples: Floats = np.concatenate(pieces)
        self.spent_s += self._clock() - began
        self.spoken_s += len(samples) / self.synthesizer.sample_rate
        return samples


class TeacherSynthesizer:
    """The teacher voices' own speech: `joe` as it is, and the same at the second voice's pitch and stretch."""

    def __init__(self) -> None:
        self._teacher = PiperTeacher()
        self._model = untrained().eval()
        adopt_decoder(self._model, decoder_weights())

    def __call__(self, text: str) -> tuple[Floats, ...]:
        """The samples of a sentence in each voice."""
        reading = self._teacher.read(self._teacher.units(text))
        samples = teacher_speech(self._model, torch.from_numpy(reading.latents.copy()))
        return samples, revoiced(samples, period=PERIODS[1], stretch=STRETCHES[1])


class PocketsphinxRecognizer:
    """The recognizer pocketsphinx with its own models of American English."""

    def __init__(self) -> None:
        judge: Any = importlib.import_module("pocketsphinx")
        self._decoder = judge.Decoder(samprate=_HEARD_RATE, loglevel="FATAL")

    def __call__(self, samples: Floats) -> str:
        """The words that it recognizes in samples at the teacher's rate."""
        heard = resample_poly(samples.astype(np.float64), *_RATIO)
        loud = heard * (_LOUD / max(1e-9, float(np.abs(heard).max())))
        self._decoder.start_utt()
        self._decoder.process_raw(loud.astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return words_of(found.hypstr) if found else ""


def words_of(text: str) -> str:
    """The words of `text` in lower case and without punctuation."""
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def word_error(said: list[str], heard: list[str]) -> float:
    """Word error rate: substituted, deleted and inserted words in percent of the spoken words."""
    judge: Any = importlib.import_module("jiwer")
    return 100 * float(judge.wer([words_of(one) for one in said], heard))


def held_out(seed: int, count: int) -> list[str]:
    """Sentences that are held out from training."""
    return list(itertools.islice(sentences.evaluation(generator(seed, 50)), count))


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Judge the model in `directory`."""
    count = evaluation.samples or SAMPLES
    said = held_out(evaluation.seed, count)
    listener, speaker, teacher = (
        PocketsphinxRecognizer(),
        InProcessSynthesizer(directory, evaluation.device),
        TeacherSynthesizer(),
    )
    # One core must be fast enough: threads that wait for each other would count as work.
    torch.set_num_threads(1)
    speaker("This is said before anything is measured.", 0)
    speaker.spent_s = speaker.spoken_s = 0.0
    evaluation.report(f"{count} sentences, spoken by the model and its teacher in {len(VOICES)} voices")
    theirs: list[list[str]] = [[] for _ in VOICES]
    ours: list[list[str]] = [[] for _ in VOICES]
    for sentence in said:
        for voice, samples in enumerate(teacher(sentence)):
            theirs[voice].append(listener(samples))
            ours[voice].append(listener(speaker(sentence, voice)))
    measures: list[Measure] = []
    for voice, name in enumerate(VOICES):
        taught, own = word_error(said, theirs[voice]), word_error(said, ours[voice])
        measures += [
            Measure(name=f"word error, {name}", value=own, samples=count, unit="%"),
            Measure(name=f"word error, {name}'s teacher", value=taught, samples=count, unit="%"),
            Measure(
                name=f"{name}'s word error against the teacher's",
                value=own / max(taught, 1e-9),
                samples=count,
                unit="x",
            ),
        ]
    taught, own = (
        word_error(said * len(VOICES), heard) for heard in ([*itertools.chain(*theirs)], [*itertools.chain(*ours)])
    )
    measures.append(
        Measure(
            name="word error against the teacher's, both voices",
            value=own / max(taught, 1e-9),
            samples=count * len(VOICES),
            at_most=MOST_TIMES,
            unit="x",
        )
    )
    rate = speaker.spent_s / speaker.spoken_s
    return [
        *measures,
        Measure(name="real-time factor, one core", value=rate, samples=2 * count, at_most=MOST_REAL_TIME, unit="x"),
    ]
