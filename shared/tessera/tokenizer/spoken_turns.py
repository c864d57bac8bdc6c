"""Turns of a conversation as a codec language model of CSM's class reads them, without Transformers or torch.

A turn is a text with its speaker's number before it, between the tokens that begin and end a text; the frames of its
sound come after it. Source: the chat template and `CsmProcessor` of Transformers. Does not know sentences or sound.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.tokenizer.tokenizer import Tokenizer

SPEAKERS = 10
"""How many a model has that names none."""
_NUMBERED = re.compile(r"speaker-(\d{1,4})")


class _Named(msgspec.Struct, frozen=True):
    content: str


class _TurnEnds(msgspec.Struct, frozen=True):
    """What `tokenizer_config.json` says of a text's ends."""

    bos_token: str | _Named
    eos_token: str | _Named


class SpokenTurns:
    """Writes turns.

    Args:
        directory: holds `tokenizer.json` and `tokenizer_config.json`.

    Raises:
        ModelLoadError: a file is missing or damaged, or the tokens at a text's ends are not in the vocabulary.
    """

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer(directory)
        try:
            settings = msgspec.json.decode((directory / "tokenizer_config.json").read_bytes(), type=_TurnEnds)
        except (OSError, msgspec.MsgspecError) as error:
            raise ModelLoadError(f"cannot read the tokenizer in {directory}: {error}") from error
        ends: list[int] = []
        for token in (settings.bos_token, settings.eos_token):
            spelling = token if isinstance(token, str) else token.content
            found = self._tokenizer.fast.token_to_id(spelling)
            if found is None:
                raise ModelLoadError(f"{directory / 'tokenizer.json'} has no token {spelling!r}, which ends a text")
            ends.append(found)
        self._begin, self._end = ends

    def encode(self, text: str, speaker: int) -> list[int]:
        """Token ids of what `speaker` says; control tokens that a text spells out are characters here."""
        return [self._begin, *self._tokenizer.encode_pieces_now([(f"[{speaker}]{text}", True)]), self._end]


def speaker_of(voice: str) -> int:
    """The number of a voice by its name: `speaker-3` is 3; who is known by a recording is 0."""
    match = _NUMBERED.fullmatch(voice)
    return int(match[1]) if match else 0
