"""Turns of speakers with names, and the words of a transcript by speaker.

Knows nothing about how speakers are told apart (see `tessera_speech.recordings.speakers`) or HTTP.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from tessera.errors import InvalidRequestError, TesseraError
from tessera.wire.audio import TranscriptionRequest, VADConfig
from tessera_speech.recordings import decoding as recordings
from tessera_speech.recordings.speakers import Diarizer
from tessera_speech.recordings.voice_activity import RATE, speech_spans

BETWEEN_TURNS = VADConfig(prefix_padding_ms=0, silence_duration_ms=300)
"""Voice activity detection for turns: with shorter silences than for windows, because people take turns quickly."""
REFERENCE_RANGE_S = (2.0, 10.0)
"""Shortest and longest reference of a known speaker, in seconds."""
MAX_KNOWN_SPEAKERS = 4
"""Most speakers with names in a request, as in OpenAI's API."""
_DATA_URL = re.compile(r"^data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,", re.ASCII)
_Timed = TypeVar("_Timed")


@dataclass(frozen=True)
class KnownSpeakers:
    """Speakers with names, and a recording of each."""

    names: list[str]
    samples: list[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class SpeakerTurns:
    """The turns of a recording, in order.

    Attributes:
        begins: second at which each turn begins.
        ends: second at which each turn ends.
        names: name of the speaker of each turn.
    """

    begins: list[float]
    ends: list[float]
    names: list[str]

    def speaker_at(self, second: float) -> str:
        """Name of the speaker at a second; between two turns that of the nearer one."""
        if not self.begins:
            return "A"
        after = bisect.bisect_right(self.begins, second)
        if after == 0:
            return self.names[0]
        if after < len(self.begins) and self.begins[after] - second < second - self.ends[after - 1]:
            return self.names[after]
        return self.names[after - 1]

    def split_by_speaker(
        self, words: Sequence[_Timed], times: Sequence[tuple[float, float]]
    ) -> list[tuple[str, list[_Timed]]]:
        """Runs of words of one speaker. `times` are the seconds at which each word begins and ends."""
        names = [self.speaker_at((begin + end) / 2) for begin, end in times]
        runs = groupby(zip(names, words, strict=True), key=lambda pair: pair[0])
        return [(name, [word for _, word in run]) for name, run in runs]


def known_speakers(body: TranscriptionRequest) -> KnownSpeakers:
    """The speakers with names of a request.

    Raises:
        InvalidRequestError: names without references, too many, not a data URL, a reference too short or too long.
    """
    names, references = body.known_speaker_names, body.known_speaker_references
    if len(names) != len(references) or len(names) > MAX_KNOWN_SPEAKERS:
        raise InvalidRequestError(
            f"`known_speaker_names` has {len(names)} and `known_speaker_references` {len(references)}: "
            f"there must be as many of both, at most {MAX_KNOWN_SPEAKERS}",
            param="known_speaker_references",
        )
    if len(set(names)) != len(names):
        raise InvalidRequestError("`known_speaker_names` must differ", param="known_speaker_names")
    return KnownSpeakers(
        list(names), [_reference(reference, name) for name, reference in zip(names, references, strict=True)]
    )


def _reference(url: str, name: str) -> np.ndarray[Any, Any]:
    param = "known_speaker_references"
    head = _DATA_URL.match(url[:200])
    if head is None:
        raise InvalidRequestError(f"the reference of {name!r} must be a data URL with base64", param=param)
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(f"the reference of {name!r} is not base64: {error}", param=param) from error
    try:
        samples = recordings.decode(data, rate=RATE, max_seconds=REFERENCE_RANGE_S[1])
    except TesseraError as error:
        raise InvalidRequestError(f"the reference of {name!r}: {error.message}", param=param) from error
    if samples.size < REFERENCE_RANGE_S[0] * RATE:
        raise InvalidRequestError(
            f"the reference of {name!r} has {samples.size / RATE:.1f} s; "
            f"{REFERENCE_RANGE_S[0]:g} to {REFERENCE_RANGE_S[1]:g} are needed",
            param=param,
        )
    return samples


def find_speaker_turns(
    samples: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any], diarizer: Diarizer, known: KnownSpeakers
) -> SpeakerTurns:
    """Find the turns of a recording and who speaks in each.

    Args:
        samples: float32 [samples] at 16 kHz.
        probabilities: of speech in each frame; see `tessera_speech.recordings.voice_activity`.
        diarizer: tells speakers apart.
        known: speakers with names; the others are A, B, C, … in order of appearance.
    """
    found = speech_spans(probabilities, samples.size, BETWEEN_TURNS)
    speakers = diarizer.speakers(samples, found, known.samples)
    names = [known.names[one] if one < len(known.names) else _letters(one - len(known.names)) for one in speakers]
    return SpeakerTurns([first / RATE for first, _ in found], [end / RATE for _, end in found], names)


def _letters(number: int) -> str:
    """Name of the speaker with this index: A, B, …, Z, AA, AB, …"""
    letters = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
