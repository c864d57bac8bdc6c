"""Turns of a conversation as a codec language model of CSM's class reads them, without Transformers or torch.

A turn is the speaker's number and the text, between the tokens that begin and end a text; the audio frames follow it.
Source: the chat template and `CsmProcessor` of Transformers. Knows nothing about sentences or audio.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import read_as
from tessera.tokenizer.tokenizer import Tokenizer

SPEAKERS = 10
"""Number of speakers of a model that names none."""
_NUMBERED = re.compile(r"speaker-(\d{1,4})")


class _Named(msgspec.Struct, frozen=True):
    content: str


class _TurnEnds(msgspec.Struct, frozen=True):
    """The tokens in `tokenizer_config.json` that begin and end a text."""

    bos_token: str | _Named
    eos_token: str | _Named


class SpokenTurns:
    """Encodes turns.

    Args:
        directory: holds `tokenizer.json` and `tokenizer_config.json`.

    Raises:
        ModelLoadError: a file is missing or damaged, or the tokens that begin and end a text are not in the vocabulary.
    """

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer(directory)
        settings = read_as(directory / "tokenizer_config.json", _TurnEnds)
        ends: list[int] = []
        for token in (settings.bos_token, settings.eos_token):
            spelling = token if isinstance(token, str) else token.content
            token_id = self._tokenizer.fast.token_to_id(spelling)
            if token_id is None:
                raise ModelLoadError(f"{directory / 'tokenizer.json'} has no token {spelling!r}, which ends a text")
            ends.append(token_id)
        self._begin, self._end = ends

    def encode(self, text: str, speaker: int) -> list[int]:
        """Token ids of a turn of `speaker`. Control tokens that the text spells are encoded as characters."""
        return [self._begin, *self._tokenizer.encode_pieces_now([(f"[{speaker}]{text}", True)]), self._end]


def speaker_of(voice: str) -> int:
    """The speaker's number of a voice: 3 for `speaker-3`, and 0 for a voice that is given by a recording."""
    match = _NUMBERED.fullmatch(voice)
    return int(match[1]) if match else 0
