"""The rules of which tokens may follow in a Whisper transcript, for many rows at once.

The rules are those of Whisper's authors, in the form of Transformers' logits processors: tokens that are never written,
tokens that are not written first, and timestamps in pairs that do not run backwards. Knows nothing about models or
caches.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class TokenRules:
    """The rules of one model.

    Args:
        generation: generation configuration of the model.
        vocabulary: number of tokens.
        end: the token that ends a transcript; tokens below it are text.
        device: device of the logits.
    """

    def __init__(self, generation: Any, vocabulary: int, end: int, device: torch.device) -> None:
        self._end = end
        self._device = device
        self.no_timestamps: int | None = getattr(generation, "no_timestamps_token_id", None)
        """The token that asks for a transcript without timestamps, which are the tokens after it. None without any."""
        initial = getattr(generation, "max_initial_timestamp_index", None)
        self._last_initial = None if initial is None or self.no_timestamps is None else self.no_timestamps + 1 + initial
        self._never_V = self._mask(generation.suppress_tokens, vocabulary)
        self._not_first_V = self._mask(generation.begin_suppress_tokens, vocabulary)
        self._ids_V = torch.arange(vocabulary, device=device)

    def apply(self, logits_BV: torch.Tensor, written: Sequence[Sequence[int]], timestamps: Sequence[bool]) -> None:
        """Set the logits of tokens that may not follow to minus infinity, in place.

        Args:
            logits_BV: float32.
            written: tokens of each row so far, without its prompt.
            timestamps: whether each row writes timestamps.
        """
        logits_BV.masked_fill_(self._never_V, -torch.inf)
        first_B = torch.tensor([not tokens for tokens in written], device=self._device)
        logits_BV.masked_fill_(first_B[:, None] & self._not_first_V, -torch.inf)
        rows = [row for row, wanted in enumerate(timestamps) if wanted]
        if not rows or self.no_timestamps is None:
            return
        chosen = torch.tensor(rows, device=self._device)
        logits_BV[chosen] = self._with_timestamps(logits_BV[chosen], [written[row] for row in rows], first_B[chosen])

    def _with_timestamps(
        self, logits_BV: torch.Tensor, written: list[Sequence[int]], first_B: torch.Tensor
    ) -> torch.Tensor:
        """Logits of rows that write timestamps, with what their rules forbid masked."""
        assert self.no_timestamps is not None
        begin = self.no_timestamps + 1
        state = torch.tensor([self._state(tokens, begin) for tokens in written], device=self._device)
        after_one, after_pair, least = state[:, 0, None] == 1, state[:, 1, None] == 1, state[:, 2, None]
        ids_V, first = self._ids_V, first_B[:, None]
        stamps_V = ids_V >= begin
        forbidden = (ids_V == self.no_timestamps) | (after_pair & stamps_V) | (after_one & (ids_V < self._end))
        forbidden |= stamps_V & (ids_V < least)
        forbidden |= first & ~stamps_V
        if self._last_initial is not None:
            forbidden |= first & (ids_V > self._last_initial)
        logits_BV = logits_BV.masked_fill(forbidden, -torch.inf)
        # A timestamp is written where all timestamps together are likelier than any text token.
        likely = logits_BV.log_softmax(-1)
        due = likely[:, begin:].logsumexp(-1) > likely[:, :begin].max(-1).values
        return logits_BV.masked_fill(due[:, None] & ~stamps_V, -torch.inf)

    @staticmethod
    def _state(tokens: Sequence[int], begin: int) -> tuple[int, int, int]:
        """Whether `tokens` end with one timestamp, whether with a pair, and the least timestamp that may follow."""
        last = bool(tokens) and tokens[-1] >= begin
        before = len(tokens) < 2 or tokens[-2] >= begin
        stamp = next((token for token in reversed(tokens) if token >= begin), None)
        one = last and not before
        least = begin if stamp is None else stamp if one else stamp + 1
        return int(one), int(last and before), least

    def _mask(self, tokens: Sequence[int] | None, vocabulary: int) -> torch.Tensor:
        marked = torch.zeros(vocabulary, dtype=torch.bool, device=self._device)
        if tokens:
            marked[torch.tensor(list(tokens), device=self._device)] = True
        return marked
