"""Times of words: Whisper's cross-attention aligned with the audio by dynamic time warping.

Source: Whisper's `timing.py` and Transformers' `_extract_token_timestamps`, with the same results. Attention of the
heads that follow the audio is normalized over tokens, median-filtered over time and averaged; the cheapest monotonic
path through it gives each token its time. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

FRAME_S = 0.02
"""Seconds of one frame of the encoder."""
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages without blanks between words; every character counts as a word."""
BEFORE = "\"'“¿([{-"
"""Punctuation that belongs to the word after it."""
AFTER = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before it."""


def token_times(attention_ATF: torch.Tensor, *, median_width: int) -> list[float]:
    """Second at which each token begins.

    Args:
        attention_ATF: attention of each head, token and frame of `FRAME_S`, float32.
        median_width: width of the median filter in frames, odd.
    """
    deviation = attention_ATF.std(-2, keepdim=True, unbiased=False)
    weights = (attention_ATF - attention_ATF.mean(-2, keepdim=True)) / deviation
    side = median_width // 2
    if weights.shape[-1] > side:
        padded = functional.pad(weights, (side, side), mode="reflect")
        weights = padded.unfold(-1, median_width, 1).sort(-1)[0][..., side]
    tokens, frames = cheapest_path(-weights.mean(0).cpu().double().numpy())
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    times: list[float] = (frames[jumps] * FRAME_S).tolist()
    return times


def cheapest_path(cost_TF: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Dynamic time warping by anti-diagonals: the cheapest monotonic path through `cost_TF`, as rows and columns."""
    rows, columns = cost_TF.shape
    cost = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    trace = np.full((rows + 1, columns + 1), -1, dtype=np.int8)
    cost[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, up, left = cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1]
        step = np.where((both < up) & (both < left), 0, np.where((up < both) & (up < left), 1, 2))
        cost[i, j] = cost_TF[i - 1, j - 1] + np.choose(step, (both, up, left))
        trace[i, j] = step
    trace[0, :], trace[:, 0] = 2, 1
    path = []
    row, column = rows, columns
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step_taken = trace[row, column]
        row -= int(step_taken != 2)
        column -= int(step_taken != 1)
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


def split_words(tokens: list[int], decode: Callable[[list[int]], str], language: str) -> list[list[int]]:
    """Group text tokens into words, with punctuation at the word that it belongs to.

    Args:
        tokens: text tokens.
        decode: returns the text of tokens, with their leading blanks.
        language: code of the language.

    Returns:
        The tokens of each word, in order.
    """
    characters: list[tuple[str, list[int]]] = []
    held: list[int] = []
    for token in tokens:
        held.append(token)
        text = decode(held)
        if "\N{REPLACEMENT CHARACTER}" not in text:  # otherwise bytes of a character are still missing
            characters.append((text, held))
            held = []
    if held:
        characters.append((decode(held), held))
    words: list[tuple[str, list[int]]] = []
    for text, part in characters:
        begins = language in UNSPACED or text.startswith(" ") or text.strip() in AFTER + BEFORE
        if begins or not words:
            words.append((text, part))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + part)
    return _with_punctuation(words)


def _with_punctuation(words: list[tuple[str, list[int]]]) -> list[list[int]]:
    merged: list[tuple[str, list[int]]] = []
    for text, part in words:
        before = merged and merged[-1][0].startswith(" ") and merged[-1][0].strip() in BEFORE
        after = merged and not merged[-1][0].endswith(" ") and text in AFTER
        if before or after:
            merged[-1] = (merged[-1][0] + text, merged[-1][1] + part)
        else:
            merged.append((text, part))
    return [part for _, part in merged]
