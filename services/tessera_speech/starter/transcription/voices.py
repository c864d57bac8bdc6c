"""Voices of espeak-ng, and the distortions of rooms and microphones.

A voice is an accent with a speaker (a variant of espeak-ng: formants, pitch, source). Some speakers and accents are
held out from training. Knows neither sentences nor features.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from tessera_speech.starter.espeak import EspeakTeacher

RATE = 16_000
"""Sample rate of all recordings here, in hertz."""
FloatArray = npt.NDArray[np.float32]

ACCENTS = (
    *("en-us",) * 5,
    *("en",) * 3,  # espeak-ng's name for British English
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)
"""Trained accents, each as frequent as its number of entries."""
HELD_OUT_ACCENTS = ("en-gb-x-rp",)
_SPEAKERS = (
    "m1 m2 m3 m4 m6 m7 m8 f1 f2 f4 f5 klatt klatt3 klatt4 klatt5 klatt6 adam anika announcer antonio aunty benjamin "
    "boris david ed edward edward2 grandma grandpa gustave iven iven2 iven3 iven4 john max michael miguel mike2 "
    "norbert pablo paul pedro quincy rob robert sandro shelby steph steph2 steph3 travis victor zac Andrea Andy Annie "
    "Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Mario Michael Mike Nguyen Reed"
)
SPEAKERS = tuple(_SPEAKERS.split())
HELD_OUT_SPEAKERS = ("f3", "m5", "klatt2", "linda", "caleb", "belinda", "michel", "ian", "Alicia", "Marco")


INVENTED = "invented-{:03}"
INVENTIONS = 90
FORMANTS = 9


@dataclass(frozen=True)
class Manner:
    """A manner of speaking.

    Args:
        voice: name of espeak-ng's voice, `accent+speaker`, or `accent` for the accent's own speaker.
        words_per_minute: pace of the teacher.
        pitch: pitch within the voice's own range, 0 to 100.
        pitch_range: range of the pitch, 0 to 100.
        stretch: factor of the recording's duration, which changes pitch, formants and tempo together.
    """

    voice: str
    words_per_minute: int = 165
    pitch: int = 50
    pitch_range: int = 50
    stretch: float = 1.0


@dataclass(frozen=True)
class Sound:
    """A recording.

    Args:
        samples: float32 [time] at `RATE`, between -1 and 1.
        phonemes: name and begin in seconds of each phoneme, in order; an empty name is a pause.
    """

    samples: FloatArray
    phonemes: list[tuple[str, float]]


def trained_manner(random: np.random.Generator, *, invented: bool = False) -> Manner:
    """Draw a trained manner; with `invented`, for a teacher with the data of `invent`, mostly one of its speakers."""
    accent = ACCENTS[int(random.integers(len(ACCENTS)))]
    known = (*SPEAKERS, *(INVENTED.format(number) for number in range(INVENTIONS))) if invented else SPEAKERS
    speaker = "" if random.random() < 0.05 else "+" + known[int(random.integers(len(known)))]
    return Manner(
        accent + speaker,
        words_per_minute=int(random.integers(130, 201)),
        pitch=int(random.integers(25, 76)),
        pitch_range=int(random.integers(30, 81)),
        stretch=float(random.uniform(0.9, 1.1)),
    )


def invent(folder: Path, seed: int) -> Path:
    """Copy the teacher's data to `folder`, and add `INVENTIONS` speakers whose formants and pitches are drawn."""
    loader = importlib.import_module("espeakng_loader")
    data = folder / "espeak-ng-data"
    shutil.copytree(str(loader.get_data_path()), data, dirs_exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(INVENTIONS):
        name = INVENTED.format(number)
        lowest = random.uniform(65, 200)
        size = random.uniform(85, 125)  # percent: a vocal tract scales all formants, roughly
        lines = ["language variant", f"name {name}", f"pitch {lowest:.0f} {lowest * random.uniform(1.15, 1.7):.0f}"]
        for formant in range(FORMANTS):
            height, width = random.uniform(60, 150), random.uniform(70, 170)
            lines.append(f"formant {formant} {size * random.uniform(0.92, 1.08):.0f} {height:.0f} {width:.0f}")
        if random.random() < 0.3:
            lines.append(f"klatt {random.integers(1, 7)}")
        if random.random() < 0.3:
            lines.append(f"echo {random.integers(10, 130)} {random.integers(10, 60)}")
        lines += [f"flutter {random.integers(0, 10)}", f"roughness {random.integers(0, 5)}"]
        (data / "voices" / "!v" / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data


def held_out_manner(random: np.random.Generator) -> Manner:
    """Draw a held-out manner: a held-out speaker with any accent, or the own speaker of a held-out accent."""
    speaker = HELD_OUT_SPEAKERS[int(random.integers(len(HELD_OUT_SPEAKERS)))]
    accents = ("en-us", "en", *HELD_OUT_ACCENTS)
    accent = accents[int(random.integers(len(accents)))]
    own = accent in HELD_OUT_ACCENTS and random.random() < 0.25
    return Manner(
        accent if own else f"{accent}+{speaker}",
        words_per_minute=int(random.integers(140, 191)),
        pitch=int(random.integers(35, 66)),
    )


def say(teacher: EspeakTeacher, text: str, manner: Manner) -> Sound:
    """Speak `text`."""
    speech = teacher.speak(
        text,
        manner.voice,
        words_per_minute=manner.words_per_minute,
        pitch=manner.pitch,
        pitch_range=manner.pitch_range,
    )
    rate = round(speech.rate / manner.stretch)
    phonemes = [
        (event.name.strip("ˈˌ"), event.sample / rate) for event in speech.events if event.kind in ("phoneme", "end")
    ]
    return Sound(resample(speech.samples, rate), phonemes)


def joined(sounds: Sequence[Sound], pauses: Sequence[float]) -> Sound:
    """Join sounds; `pauses` are the seconds of silence before each, and the last one follows all of them."""
    parts: list[FloatArray] = []
    phonemes: list[tuple[str, float]] = []
    position = 0
    for sound, pause in zip(sounds, pauses, strict=False):
        silence = np.zeros(round(pause * RATE), dtype=np.float32)
        phonemes.append(("", position / RATE))
        position += len(silence)
        phonemes += [(name, second + position / RATE) for name, second in sound.phonemes]
        position += len(sound.samples)
        parts += [silence, sound.samples]
    phonemes.append(("", position / RATE))
    parts.append(np.zeros(round(pauses[len(sounds)] * RATE), dtype=np.float32))
    return Sound(np.concatenate(parts), phonemes)


def resample(samples: npt.NDArray[np.int16], rate: int) -> FloatArray:
    """Convert int16 samples at `rate` to float32 samples at `RATE`."""
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None, :], format="s16", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    made = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray()[0] for part in made])


def degraded(samples: FloatArray, random: np.random.Generator) -> FloatArray:
    """Degrade samples as rooms and microphones do: reverberation, a filtered spectrum, noise. Times stay the same."""
    result: npt.NDArray[Any] = samples
    if random.random() < 0.3:
        result = _in_a_room(result, random)
    if random.random() < 0.5:
        result = _filtered(result, random)
    if random.random() < 0.8:
        level = np.sqrt(np.mean(result**2) + 1e-9) * 10 ** (-random.uniform(8, 40) / 20)
        result = result + level * _noise(len(result), random)
    peak = float(np.abs(result).max()) + 1e-6
    return (result * (random.uniform(0.1, 0.95) / peak)).astype(np.float32)


def _in_a_room(samples: npt.NDArray[Any], random: np.random.Generator) -> npt.NDArray[Any]:
    """Add reverberation: convolve with noise that decays within 0.1 to 0.5 s after the direct sound."""
    length = int(RATE * random.uniform(0.1, 0.5))
    tail = random.standard_normal(length) * np.exp(-6.9 * np.arange(length) / length)
    tail *= random.uniform(0.1, 0.6) / np.sqrt(np.sum(tail**2))
    tail[0] = 1.0
    size = 1 << (len(samples) + length - 1).bit_length()
    spectrum = np.fft.rfft(samples, size) * np.fft.rfft(tail, size)
    return np.fft.irfft(spectrum, size)[: len(samples)]


def _filtered(samples: npt.NDArray[Any], random: np.random.Generator) -> npt.NDArray[Any]:
    """Apply a smooth random gain over frequency of up to about 10 dB, and sometimes a telephone's band-pass."""
    size = 1 << (len(samples) - 1).bit_length()
    frequencies = np.fft.rfftfreq(size, 1 / RATE)
    knots = random.uniform(-10, 10, size=7)
    decibels = np.interp(frequencies, np.linspace(0, RATE / 2, 7), knots)
    if random.random() < 0.2:
        low, high = random.uniform(100, 350), random.uniform(3_200, 6_000)
        decibels -= 12 * np.maximum(0, np.log2(low / np.maximum(frequencies, 1.0)))
        decibels -= 24 * np.maximum(0, np.log2(np.maximum(frequencies, 1.0) / high))
    return np.fft.irfft(np.fft.rfft(samples, size) * 10 ** (decibels / 20), size)[: len(samples)]


def _noise(length: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """Draw noise between white and brown, with a power of 1."""
    size = 1 << (length - 1).bit_length()
    spectrum = np.fft.rfft(random.standard_normal(size))
    spectrum /= np.maximum(1.0, np.arange(len(spectrum))) ** random.uniform(0, 1)
    noise: npt.NDArray[Any] = np.fft.irfft(spectrum, size)[:length]
    noise /= np.sqrt(np.mean(noise**2)) + 1e-9
    return noise
