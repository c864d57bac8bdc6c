"""Which tokens a client allows: allow-lists, banned sequences, and tokens that may not come before others.

They are masks on logits, as those of grammars are, and depend on a request's own answer alone: so a draft token that
they forbid is not accepted, and a step that overlaps another sees the tokens before it. Knows no request,
no grammar.
"""

from __future__ import annotations

import torch

from tessera.device.copies import to_device
from tessera.wire.engine import Sampling


class TokenConstraints:
    """The constraints of one request.

    Args:
        sampling: of the request.

    Attributes:
        few: Whether some tokens are never allowed, so that what a grammar forces may be forbidden, too.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._held = sampling.held_ids
        self._least = sampling.min_tokens if sampling.held_ids else 0
        self._allowed = sampling.allowed_ids
        self._never = sorted({sequence[0] for sequence in sampling.banned if len(sequence) == 1})
        self._behind: dict[int, list[list[int]]] = {}
        """Banned sequences of several tokens by their last token but one."""
        for sequence in sampling.banned:
            if len(sequence) > 1:
                self._behind.setdefault(sequence[-2], []).append(sequence)
        self.few = self._allowed is not None or bool(sampling.banned)

    def holds(self, length: int) -> bool:
        """Return whether an answer of `length` tokens is too short for a held token."""
        return length < self._least

    def __bool__(self) -> bool:
        """Return whether there is any constraint."""
        return self.few or self._least > 0

    def mask(self, logits_V: torch.Tensor, output: list[int], *, may_end: bool) -> None:
        """Set the logits of the tokens that may not come next to -inf, in place.

        Args:
            logits_V: One row; a grammar has masked it already.
            output: Tokens of the answer so far.
            may_end: Whether held tokens are allowed where nothing else is: a grammar's text that is complete can only
                end.
        """
        nothing = float("-inf")
        if self._allowed is not None:
            allowed = to_device(self._allowed, logits_V.device, torch.int64)
            kept_V = torch.full_like(logits_V, nothing)
            kept_V[allowed] = logits_V[allowed]
            logits_V.copy_(kept_V)
        banned = self._banned_behind(output)
        if banned:
            logits_V[to_device(banned, logits_V.device, torch.int64)] = nothing
        if self.holds(len(output)):
            free_V = logits_V.clone()
            held = [token for token in self._held if token < len(logits_V)]
            free_V[to_device(held, logits_V.device, torch.int64)] = nothing
            if may_end:
                free_V = torch.where(torch.isfinite(free_V).any(), free_V, logits_V)
            logits_V.copy_(free_V)

    def _banned_behind(self, output: list[int]) -> list[int]:
        banned = list(self._never)
        behind = self._behind.get(output[-1], []) if output else []
        banned += [one[-1] for one in behind if output[-len(one) + 1 :] == one[:-1]]
        return banned
