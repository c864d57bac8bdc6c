"""Planners, one for each kind of synthesis model: they turn a text into token ids and refuse what the model cannot do.

A model of characters (VITS) or phonemes (FastSpeech) gets tokens with durations, so words have times, and its voices
can be mixed. A codec language model (CSM) gets turns of a conversation and keeps its own pace. Without torch. Knows
nothing about engines or codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from tessera.errors import InvalidRequestError
from tessera.tokenizer.model_files import read_as
from tessera.tokenizer.spoken_turns import SpokenTurns, speaker_of
from tessera.wire.audio import SpeechRequest
from tessera.wire.engine import Utterance
from tessera_speech.text import ssml
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.normalization import normalize_traced
from tessera_speech.text.phonemes import PhonemeTokenizer
from tessera_speech.text.speech_plan import SpeechPlan, add_pause, plan_script, plan_text, split_script
from tessera_speech.text.traced_text import TracedText


class SpeechPlanner(Protocol):
    """Makes plans for a model."""

    def check(self, body: SpeechRequest) -> None:
        """Refuse what the model cannot do.

        Raises:
            InvalidRequestError: names the field.
        """
        ...

    def plan(self, text: str, *, markup: bool, voice: str) -> SpeechPlan:
        """The plan of `text`, which with `markup` may be SSML, for the voice with this name.

        Raises:
            InvalidRequestError: malformed SSML, or nothing that the model can speak.
        """
        ...


class CharacterPlanner:
    """Implements `SpeechPlanner` for models of characters.

    Args:
        directory: directory of the model.

    Raises:
        ModelLoadError: see `CharacterTokenizer`.
    """

    def __init__(self, directory: Path) -> None:
        self._characters = CharacterTokenizer(directory)

    def check(self, body: SpeechRequest) -> None:
        """Accept every request: such a model can do everything."""

    def plan(self, text: str, *, markup: bool, voice: str) -> SpeechPlan:  # noqa: ARG002 - the plan is the same for every voice
        """Implements `SpeechPlanner.plan`."""
        return plan_text(text, self._characters, markup=markup)


class PhonemePlanner:
    """Implements `SpeechPlanner` for models of English phonemes.

    Args:
        directory: directory of the model.

    Raises:
        ModelLoadError: see `PhonemeTokenizer`.
    """

    def __init__(self, directory: Path) -> None:
        self._phonemes = PhonemeTokenizer(directory)

    def check(self, body: SpeechRequest) -> None:
        """Accept every request: such a model can do everything."""

    def plan(self, text: str, *, markup: bool, voice: str) -> SpeechPlan:  # noqa: ARG002 - the plan is the same for every voice
        """Implements `SpeechPlanner.plan`."""
        phonemes = self._phonemes
        marked = markup and ssml.is_ssml(text)
        script = ssml.parse(text, phonemes.parse) if marked else ssml.Script(text)
        plan = plan_script(
            script,
            normalize_traced,
            lambda sentence, origins: phonemes.encode_with_places(sentence, origins, script.sounds),
        )
        if not plan.tokens:
            raise InvalidRequestError("`input` has nothing that can be spoken", param="input")
        return plan


class TurnPlanner:
    """Implements `SpeechPlanner` for codec language models.

    Args:
        directory: directory of the model.

    Raises:
        ModelLoadError: see `SpokenTurns`.
    """

    def __init__(self, directory: Path) -> None:
        self._turns = SpokenTurns(directory)

    def check(self, body: SpeechRequest) -> None:
        """Refuse a speed and times of words, which such a model does not have."""
        if body.speed != 1.0:
            raise InvalidRequestError(
                f"{body.model!r} speaks at its own pace: leave `speed` out, or choose another model", param="speed"
            )
        if body.timestamp_granularities:
            raise InvalidRequestError(
                f"{body.model!r} does not know when it says a word: leave `timestamp_granularities` out",
                param="timestamp_granularities",
            )

    def plan(self, text: str, *, markup: bool, voice: str) -> SpeechPlan:
        """Implements `SpeechPlanner.plan`. Every sentence becomes a turn."""
        script = ssml.parse(text) if markup and ssml.is_ssml(text) else ssml.Script(text)
        if script.rates:
            raise InvalidRequestError(
                "`input` has `prosody` with a `rate`, and this model speaks at its own pace",
                param="input",
                code="invalid_ssml",
            )
        plan, begin, speaker = SpeechPlan(), 0, speaker_of(voice)
        for place, seconds in [*script.pauses, (len(script.text), 0.0)]:
            for sentence, _ in split_script(script, begin, place, _as_written):
                if any(character.isalnum() for character in sentence):
                    plan.sentences.append(Utterance(token_ids=self._turns.encode(sentence, speaker)))
                    plan.words.append([])
            if seconds > 0:
                add_pause(plan, seconds)
            begin = place
        if not plan.tokens:
            raise InvalidRequestError("`input` has nothing that can be spoken", param="input")
        return plan


def _as_written(text: TracedText) -> TracedText:
    return text


class _Configuration(msgspec.Struct, frozen=True):
    model_type: str


_PLANNERS: Mapping[str, Callable[[Path], SpeechPlanner]] = MappingProxyType(
    {"csm": TurnPlanner, "fastspeech2_conformer_with_hifigan": PhonemePlanner}
)
"""Planners by `model_type`; other models take characters."""


def model_type_of(directory: Path) -> str:
    """The `model_type` in a model's configuration.

    Raises:
        ModelLoadError: the configuration is missing or cannot be read.
    """
    return read_as(directory / "config.json", _Configuration).model_type


def load_planner(directory: Path) -> SpeechPlanner:
    """The planner for the model in a directory.

    Raises:
        ModelLoadError: its tokenizer is damaged, or needs phonemes or romanized text that the suite does not produce.
    """
    return _PLANNERS.get(model_type_of(directory), CharacterPlanner)(directory)
