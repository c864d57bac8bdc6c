"""Log-probabilities in shapes other than chat's: of completions, as OpenAI had them, and of prompts, as vLLM has."""

from __future__ import annotations

import msgspec


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token at a position of the prompt, as vLLM shows it."""

    logprob: float
    rank: int
    """Rank among all tokens; 1 is the likeliest."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Log-probabilities of each position: the token of the prompt and the likeliest tokens, by token id; None for the first
position."""


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities in the older shape: four parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """None for the first token of an echoed prompt: nothing is before it."""
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
