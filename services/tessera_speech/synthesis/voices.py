"""Finds the voices of a model that a request names.

A model's own names come first. OpenAI's names stand for the model's voices in turn: with two voices, `alloy` is the
first, `ash` the second, `ballad` the first again, in the order of OpenAI's reference. No name is the first voice.
Several joined by `+` are mixed: `joe+anna` in equal parts, `joe(3)+anna(1)` by weight.
"""

from __future__ import annotations

import re
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

_PART = re.compile(r"\s*(?P<name>[^()]+?)\s*(?:\((?P<weight>\d{1,3}(?:\.\d{1,3})?)\))?\s*")


def mixture_of(name: str | None, voices: Sequence[str]) -> dict[int, float]:
    """Weights of the model's voices by index, with a sum of 1.

    Raises:
        InvalidRequestError: an unknown voice, a malformed weight, or a mixture where the model has one voice.
    """
    if name is None or name in voices or "+" not in name:
        return {index_of(name, voices): 1.0}
    if len(voices) == 1:
        raise InvalidRequestError(
            f"the model has one voice, {voices[0]!r}: there is nothing to mix it with", param="voice"
        )
    weights: dict[int, float] = {}
    for part in name.split("+"):
        match = _PART.fullmatch(part)
        weight = float(match["weight"] or 1) if match else 0.0
        if match is None or weight == 0:
            raise InvalidRequestError(
                f"{part!r} in `voice` is no part of a mixture; write voices as joe+anna or with weights over 0 as "
                "joe(3)+anna(1)",
                param="voice",
            )
        index = index_of(match["name"], voices)
        weights[index] = weights.get(index, 0.0) + weight
    total = sum(weights.values())
    return {index: weight / total for index, weight in weights.items()}


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
