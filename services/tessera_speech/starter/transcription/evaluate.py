"""Judges the transcription: jiwer's word error of Tessera's own engine on held-out sentences and voices.

The recordings are synthesized anew from the evaluation's seed. Beside the measures with a bar there are others, which
show how well the model generalizes: trained voices, a neural voice, noise, people. Knows nothing about training.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from tessera.device import hardware as devices
from tessera.errors import InternalError
from tessera.hub.cards import read_card
from tessera.speech.transcription.loading import load_transcriber
from tessera.speech.transcription.queue import TranscriptionQueue
from tessera.starters.recipe import Evaluation
from tessera.wire.engine import Array, Failed, Transcribe, Transcript
from tessera.wire.models import Measure
from tessera_speech.recordings import decoding as recordings
from tessera_speech.starter.espeak import EspeakTeacher
from tessera_speech.starter.synthesis.evaluate import InProcessSynthesizer
from tessera_speech.starter.synthesis.model import VOICES
from tessera_speech.starter.synthesis.recipe import WEIGHTS as SPOKEN_BY
from tessera_speech.starter.transcription import sentences, voices
from tessera_speech.starter.transcription.neural import NeuralTeacher
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer

MOST_WORD_ERROR = 10.0
LEAST_WORDS = 1500
SAMPLES = 300
"""Sentences of each kind of voice for the measures of a card."""
NEURAL_SAMPLES = 60
"""Sentences of the neural voice, which is slower than espeak-ng."""
WORDS_A_RECORDING = 6
LONG_SENTENCES = 20
"""Sentences of a recording of about a minute."""
PEOPLE = {
    # Charles Dickens, A Tale of Two Cities (1859), its first sentence
    "two_cities.wav": "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of light, it was "
    "the season of darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we "
    "had nothing before us, we were all going direct to heaven, we were all going direct the other way, in short, the "
    "period was so far like the present period that some of its noisiest authorities insisted on its being received, "
    "for good or for evil, in the superlative degree of comparison only.",
    "beckett.wav": "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.",
}
"""Recordings in the wheel `moonshine-voice`, with their texts."""


class InProcessTranscriber:
    """A transcription model in this process, loaded as the speech service loads it."""

    def __init__(self, directory: Path, device: str) -> None:
        place = devices.choose(device, dtype="float32", threads=1).place  # type: ignore[arg-type]
        self._transcriber = load_transcriber(directory, read_card(directory), device=place)
        self._transcripts = TranscriptTokenizer(directory)
        self.heard_s = 0.0
        self.spent_s = 0.0

    def __call__(self, samples: np.ndarray[Any, Any]) -> str:
        """The transcript of float32 samples [time] at `voices.RATE`."""
        began = time.perf_counter()
        audio = Array(dtype="float32", shape=[samples.size], data=samples.astype("<f4").tobytes())
        queue = TranscriptionQueue(self._transcriber, max_windows=1)
        queue.submit(Transcribe(request_id="judged", audio=audio))
        text = ""
        while len(queue):
            for answer in queue.step():
                if isinstance(answer, Failed):
                    raise InternalError(f"a recording cannot be judged: {answer.error.message}")
                assert isinstance(answer, Transcript)
                text += "".join(self._transcripts.text(segment.token_ids) for segment in answer.segments)
        self.heard_s += samples.size / voices.RATE
        self.spent_s += time.perf_counter() - began
        return text.strip()


class Tally:
    """Sentences with their transcripts."""

    def __init__(self) -> None:
        self._pairs: list[tuple[str, str]] = []

    def add(self, said: str, heard: str) -> None:
        """Add the text and the transcript of one recording."""
        self._pairs.append((words_of(said), words_of(heard)))

    def word_error(self, name: str, *, at_most: float | None = None) -> Measure:
        """Word error rate: substituted, deleted and inserted words in percent of the spoken words."""
        judge = importlib.import_module("jiwer")
        said, heard = (list(column) for column in zip(*self._pairs, strict=True))
        value = 100 * float(judge.wer(said, heard))
        return Measure(name=name, value=value, samples=len(said), at_most=at_most, unit="%")

    def recognised(self) -> set[str]:
        """Words that were transcribed correctly at least once."""
        judge = importlib.import_module("jiwer")
        said, heard = (list(column) for column in zip(*self._pairs, strict=True))
        found = judge.process_words(said, heard)
        return {
            word
            for reference, chunks in zip(found.references, found.alignments, strict=True)
            for chunk in chunks
            if chunk.type == "equal"
            for word in reference[chunk.ref_start_idx : chunk.ref_end_idx]
        }


def words_of(text: str) -> str:
    """The words of `text` in lower case and without punctuation."""
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def evaluate(directory: Path, evaluation: Evaluation) -> list[Measure]:
    """Judge the model in `directory`."""
    listener, teacher = InProcessTranscriber(directory, evaluation.device), EspeakTeacher()
    random = np.random.default_rng(evaluation.seed)
    count = evaluation.samples or SAMPLES

    def heard(
        said: Sequence[str],
        manner: Callable[[np.random.Generator], voices.Manner],
        sounds: Callable[[voices.FloatArray], voices.FloatArray] = lambda samples: samples,
    ) -> Tally:
        tally = Tally()
        for sentence in said:
            tally.add(sentence, listener(sounds(voices.say(teacher, sentence, manner(random)).samples)))
        return tally

    evaluation.report("listening to voices that were never trained on")
    held_out = heard([sentences.held_out(random) for _ in range(count)], voices.held_out_manner)
    measures = [held_out.word_error("word error, held-out sentences and voices", at_most=MOST_WORD_ERROR)]
    rest = [sentences.held_out(random) for _ in range(count // 3)]
    noisy = heard(rest, voices.held_out_manner, lambda samples: voices.degraded(samples, random))
    measures.append(noisy.word_error("word error, the same in noise and echo"))
    measures.append(heard(rest, voices.trained_manner).word_error("word error, held-out sentences, trained voices"))
    if evaluation.samples is None:
        evaluation.report("listening to every word of the vocabulary")
        each = heard(every_word(random), voices.held_out_manner)
        measures.append(each.word_error("word error, words in any order, held-out voices"))
        known = len(held_out.recognised() | each.recognised())
        measures.append(
            Measure(name="words recognised", value=known, samples=len(sentences.vocabulary()), at_least=LEAST_WORDS)
        )
    evaluation.report("listening to long recordings, a neural voice and people")
    measures.append(_long(listener, teacher, random, max(1, count // LONG_SENTENCES // 2)))
    measures.append(_neural(listener, random, min(count, NEURAL_SAMPLES)))
    measures.append(_own(listener, random, min(count, NEURAL_SAMPLES)))
    measures.append(_people(listener))
    measures.append(Measure(name="real-time factor", value=listener.spent_s / listener.heard_s, unit="x"))
    return measures


def every_word(random: np.random.Generator) -> list[str]:
    """The whole vocabulary as texts of a few words each, none of which is trained on."""
    words = random.permutation(sentences.vocabulary())
    made = []
    for part in np.array_split(words, len(words) // WORDS_A_RECORDING):
        recording = " ".join(part)
        while not sentences.is_held_out(recording):
            recording = " ".join(random.permutation(part))
        made.append(recording)
    return made


def _long(listener: InProcessTranscriber, teacher: EspeakTeacher, random: np.random.Generator, count: int) -> Measure:
    """Word error on recordings of several windows, where a word that is lost at a cut counts."""
    tally = Tally()
    for _ in range(count):
        said = [sentences.held_out(random) for _ in range(LONG_SENTENCES)]
        manner = voices.held_out_manner(random)
        pauses = random.uniform(0.1, 0.6, size=LONG_SENTENCES + 1).tolist()
        sound = voices.joined([voices.say(teacher, sentence, manner) for sentence in said], pauses)
        tally.add(" ".join(said), listener(sound.samples))
    return tally.word_error("word error, recordings of a minute, held-out voices")


def _neural(listener: InProcessTranscriber, random: np.random.Generator, count: int) -> Measure:
    teacher, tally = NeuralTeacher(), Tally()
    for _ in range(count):
        sentence = sentences.held_out(random)
        tally.add(sentence, listener(teacher.say([sentence])[0].samples))
    return tally.word_error("word error, held-out sentences by a neural voice (Piper's joe)")


def _own(listener: InProcessTranscriber, random: np.random.Generator, count: int) -> Measure:
    """Word error on the suite's own voices."""
    speaker, tally = InProcessSynthesizer(SPOKEN_BY, "cpu"), Tally()
    for index in range(count):
        sentence = sentences.held_out(random)
        spoken = np.clip(speaker(sentence, index % len(VOICES)), -1, 1) * 32_767
        tally.add(sentence, listener(voices.resample(spoken.astype(np.int16), speaker.synthesizer.sample_rate)))
    return tally.word_error("word error, held-out sentences by english-voices, never trained on")


def _people(listener: InProcessTranscriber) -> Measure:
    tally = Tally()
    for name, said in PEOPLE.items():
        data = (files("moonshine_voice") / "assets" / name).read_bytes()
        tally.add(said, listener(recordings.decode(data, rate=voices.RATE, max_seconds=60)))
    return tally.word_error("word error, people (recordings of moonshine-voice)")
