"""Counts tokens for the `usage` of an answer. Does not know text."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.language.generation import Prompt, TextDelta
from tessera.wire.chat import PromptTokensDetails, Usage


class TokenCount:
    """Counts the tokens of one prompt and of all its choices as they come.

    Args:
        prompt: of all choices.

    Attributes:
        prompted: tokens of the prompt.
        completed: tokens of all choices so far.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.prompted = len(prompt.token_ids)
        self.completed = 0
        self._cached: int | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens that none of the choices computed."""
        return self._cached or 0

    def take(self, piece: TextDelta) -> None:
        """Count a delta."""
        self.completed += len(piece.token_ids)
        if piece.cached_tokens is not None:
            self._cached = piece.cached_tokens if self._cached is None else min(self._cached, piece.cached_tokens)


def usage(prompts: Sequence[TokenCount]) -> Usage:
    """The usage of a request with these prompts. A prompt counts once, however many choices it has."""
    prompted, completed = (sum(counts) for counts in zip(*((s.prompted, s.completed) for s in prompts), strict=True))
    return Usage(
        prompt_tokens=prompted,
        completion_tokens=completed,
        total_tokens=prompted + completed,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(spent.cached for spent in prompts)),
    )
