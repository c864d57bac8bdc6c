"""Which of a model's voices a request means.

A model's own names come first. OpenAI's names stand for the model's voices in turn: with two voices, `alloy` is the
first, `ash` the second, `ballad` the first again, in the order of OpenAI's reference. No name is the first voice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.errors import InvalidRequestError

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "onyx",
    "nova",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)


def index_of(name: str | None, voices: Sequence[str]) -> int:
    """Index of the voice in the model's list.

    Raises:
        InvalidRequestError: neither the model's voice nor one of OpenAI's names.
    """
    if name is None:
        return 0
    if name in voices:
        return voices.index(name)
    if name in OPENAI_VOICES:
        return OPENAI_VOICES.index(name) % len(voices)
    raise InvalidRequestError(
        f"there is no voice {name!r}; the model has {', '.join(voices)}, and OpenAI's names stand for them in turn",
        param="voice",
    )
