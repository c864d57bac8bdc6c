"""Text to token ids of a VITS model, without torch: the rules of Transformers' `VitsTokenizer`, one token per
character.

A text that spells out a special token (`<unk>`) is plain characters here. A model that wants phonemes or romanized text
is
refused: the programs that produce them are not part of the suite. Knows nothing about sentences or voices.
"""

from __future__ import annotations

import string
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import read_as
from tessera_speech.text.normalization import normalize_traced
from tessera_speech.text.traced_text import TracedText

_ENGLISH = frozenset({"eng", "en"})


class _CharacterTokenizerSettings(msgspec.Struct, frozen=True):
    """The fields of `tokenizer_config.json` that are used, with Transformers' defaults."""

    add_blank: bool = True
    normalize: bool = True
    phonemize: bool = True
    is_uroman: bool = False
    language: str | None = None
    unk_token: str = "<unk>"  # noqa: S105 - a token of a vocabulary


class CharacterTokenizer:
    """The characters of a model.

    Args:
        directory: has `vocab.json` and `tokenizer_config.json`.

    Raises:
        ModelLoadError: a file is missing or damaged, or the model wants phonemes or romanized text.
    """

    def __init__(self, directory: Path) -> None:
        self._ids = read_as(directory / "vocab.json", dict[str, int])
        settings = read_as(directory / "tokenizer_config.json", _CharacterTokenizerSettings)
        if settings.phonemize or settings.is_uroman:
            wanted = "phonemes" if settings.phonemize else "romanised text"
            raise ModelLoadError(
                f"the model in {directory} wants {wanted}, which the suite does not make; take one that reads "
                "characters, as the MMS-TTS models of languages in Latin script do"
            )
        self._settings = settings
        self._blank = next((token for token, index in self._ids.items() if index == 0), None)
        if self._blank is None:
            raise ModelLoadError(f"{directory / 'vocab.json'} has no token 0, which stands between the others")

    @property
    def normalizes(self) -> bool:
        """Whether numbers and symbols are written out in English words before encoding."""
        return self._settings.language in _ENGLISH and not all(digit in self._ids for digit in string.digits)

    def normalize(self, text: TracedText) -> TracedText:
        """`text` as `encode` takes it: written out in words for English models that lack digits."""
        return normalize_traced(text) if self.normalizes else text

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; empty if the model has none of its characters."""
        return [token for token, _ in self.encode_with_places(text)]

    def encode_with_places(self, text: str) -> list[tuple[int, int]]:
        """Token ids of `text`, each with the index of its character; -1 for blanks between characters."""
        settings, ids = self._settings, self._ids
        characters = list(enumerate(text))
        if settings.normalize:
            # A character that the vocabulary has as it is keeps its case; the others are lowered.
            characters = [(at, c) for at, known in characters for c in (known if known in ids else known.lower())]
        if settings.language == "ron":
            characters = [(at, "ţ" if character == "ț" else character) for at, character in characters]
        if settings.normalize:
            characters = _stripped([(at, character) for at, character in characters if character in ids])
        found = [(ids.get(character, ids.get(settings.unk_token)), at) for at, character in characters]
        tokens = [(token, at) for token, at in found if token is not None]
        if not tokens or not settings.add_blank:
            return tokens
        with_blanks = [(0, -1)] * (2 * len(tokens) + 1)
        with_blanks[1::2] = tokens
        return with_blanks


def _stripped(characters: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Characters without white space at both ends."""
    inked = [number for number, (_, character) in enumerate(characters) if not character.isspace()]
    return characters[inked[0] : inked[-1] + 1] if inked else []
