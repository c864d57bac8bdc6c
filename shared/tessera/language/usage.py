"""Counts tokens for the `usage` of an answer. Does not know text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from tessera.language.answers import ChatAnswer
from tessera.language.generation import Prompt, TextDelta
from tessera.wire.chat import CompletionTokensDetails, PromptTokensDetails, Usage


class TokenCount:
    """Counts the tokens of one prompt and of all its choices as they come.

    Args:
        prompt: of all choices.
        answers: the choices of a chat answer, kept up to date by the caller; none of a completion.

    Attributes:
        prompted: tokens of the prompt.
        completed: tokens of all choices so far.
    """

    def __init__(self, prompt: Prompt, answers: Sequence[ChatAnswer] = ()) -> None:
        self._answers = answers
        self.prompted = len(prompt.token_ids)
        self.completed = 0
        self._cached: int | None = None

    @property
    def cached(self) -> int:
        """Prompt tokens that none of the choices computed."""
        return self._cached or 0

    @property
    def reasoned(self) -> int | None:
        """Tokens of the reasoning of all choices so far; None of a completion, whose text is not parsed."""
        return sum(answer.thought_tokens for answer in self._answers) if self._answers else None

    def take(self, piece: TextDelta) -> None:
        """Count a delta."""
        self.completed += len(piece.token_ids)
        if piece.cached_tokens is not None:
            self._cached = piece.cached_tokens if self._cached is None else min(self._cached, piece.cached_tokens)


def usage(prompts: Sequence[TokenCount]) -> Usage:
    """The usage of a request with these prompts. A prompt counts once, however many choices it has."""
    prompted, completed = (sum(counts) for counts in zip(*((s.prompted, s.completed) for s in prompts), strict=True))
    reasoned = [spent.reasoned for spent in prompts if spent.reasoned is not None]
    return Usage(
        prompt_tokens=prompted,
        completion_tokens=completed,
        total_tokens=prompted + completed,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(spent.cached for spent in prompts)),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=sum(reasoned)) if reasoned else UNSET,
    )
