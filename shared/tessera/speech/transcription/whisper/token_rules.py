"""Which token may follow in a Whisper transcript, for many rows at once.

The rules are those of Whisper's authors, as Transformers' logits processors have them: tokens never written, tokens not
written first, and timestamps in pairs that do not run backwards. Does not know models or caches.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class TokenRules:
    """The rules of one model.

    Args:
        generation: its generation configuration.
        vocabulary: number of tokens.
        end: the token that ends a transcript; those below it are text.
        device: of the scores.
    """

    def __init__(self, generation: Any, vocabulary: int, end: int, device: torch.device) -> None:
        self._end = end
        self._device = device
        self.no_timestamps: int | None = getattr(generation, "no_timestamps_token_id", None)
        """The token that asks for a transcript without times; behind it are the timestamps."""
        initial = getattr(generation, "max_initial_timestamp_index", None)
        self._last_initial = None if initial is None or self.no_timestamps is None else self.no_timestamps + 1 + initial
        self._never_V = self._marked(generation.suppress_tokens, vocabulary)
        self._not_first_V = self._marked(generation.begin_suppress_tokens, vocabulary)
        self._ids_V = torch.arange(vocabulary, device=device)

    def apply(self, scores_BV: torch.Tensor, written: Sequence[Sequence[int]], timed: Sequence[bool]) -> None:
        """Forbid, in place, what may not follow.

        Args:
            scores_BV: float32.
            written: tokens of each row so far, without what it was begun with.
            timed: whether a row writes times.
        """
        scores_BV.masked_fill_(self._never_V, -torch.inf)
        first_B = torch.tensor([not tokens for tokens in written], device=self._device)
        scores_BV.masked_fill_(first_B[:, None] & self._not_first_V, -torch.inf)
        rows = [row for row, wanted in enumerate(timed) if wanted]
        if not rows or self.no_timestamps is None:
            return
        chosen = torch.tensor(rows, device=self._device)
        scores_BV[chosen] = self._timed(scores_BV[chosen], [written[row] for row in rows], first_B[chosen])

    def _timed(self, scores_BV: torch.Tensor, written: list[Sequence[int]], first_B: torch.Tensor) -> torch.Tensor:
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
        scores_BV = scores_BV.masked_fill(forbidden, -torch.inf)
        # A time is written where all times together are likelier than any text.
        likely = scores_BV.log_softmax(-1)
        due = likely[:, begin:].logsumexp(-1) > likely[:, :begin].max(-1).values
        return scores_BV.masked_fill(due[:, None] & ~stamps_V, -torch.inf)

    @staticmethod
    def _state(tokens: Sequence[int], begin: int) -> tuple[int, int, int]:
        """Whether one timestamp stands at the end, whether a pair does, and the least one that may follow."""
        last = bool(tokens) and tokens[-1] >= begin
        before = len(tokens) < 2 or tokens[-2] >= begin
        stamp = next((token for token in reversed(tokens) if token >= begin), None)
        one = last and not before
        least = begin if stamp is None else stamp if one else stamp + 1
        return int(one), int(last and before), least

    def _marked(self, tokens: Sequence[int] | None, vocabulary: int) -> torch.Tensor:
        marked = torch.zeros(vocabulary, dtype=torch.bool, device=self._device)
        if tokens:
            marked[torch.tensor(list(tokens), device=self._device)] = True
        return marked
