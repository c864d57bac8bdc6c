"""A drafter without a model: what followed the last tokens before follows them again (prompt lookup, Saxena 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.sequence.request import SequenceRequest

LONGEST_NGRAM, SHORTEST_NGRAM = 4, 2
"""Tokens of the n-grams that are looked up, the longest first."""


@dataclass
class _NGramIndex:
    """End of the last occurrence of each n-gram of one request, by the n-gram's tokens."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NGramDrafter:
    """Drafts from a request's own tokens. Implements `tessera.sequence.speculation.policy.Drafter`."""

    def __init__(self) -> None:
        self._indices: dict[SequenceRequest, _NGramIndex] = {}

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """Draft as `Drafter.draft` says."""
        drafts = {request: self._look_up(request, count) for request, count in wanted.items()}
        return {request: tokens for request, tokens in drafts.items() if tokens}

    def forget(self, request: SequenceRequest) -> None:
        """Free the index of a request."""
        self._indices.pop(request, None)

    def _look_up(self, request: SequenceRequest, count: int) -> list[int]:
        tokens = request.token_ids
        index = self._indices.setdefault(request, _NGramIndex())
        # The last n-gram itself is indexed only when something follows it.
        for end in range(max(index.indexed, SHORTEST_NGRAM), len(tokens)):
            for length in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end) + 1):
                index.ends[tuple(tokens[end - length : end])] = end
        index.indexed = len(tokens)
        for length in range(min(LONGEST_NGRAM, len(tokens) - 1), SHORTEST_NGRAM - 1, -1):
            begin = index.ends.get(tuple(tokens[-length:]))
            if begin is not None:
                draft: list[int] = []
                for place in range(begin, begin + count):  # beyond the end, a repetition repeats itself
                    draft.append(tokens[place] if place < len(tokens) else draft[place - len(tokens)])
                return draft
        return []
