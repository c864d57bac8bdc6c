"""Speculation: drafting the next tokens, so that one step can accept several.

Drafts change no answer. The engine samples at every drafted position as it would have without drafts, with the
request's own noise, and goes on while the sample equals the draft token: the same text at any temperature, in fewer
steps. The number of draft tokens follows earlier acceptance, and drafting stops where a longer step costs more than it
brings; both are measured while serving.

Knows nothing about tensors, nor where draft tokens come from: that is behind `Drafter`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from tessera.sequence.request import SequenceRequest

FIRST_DRAFT_TOKENS = 2
"""Draft tokens of a request's first draft."""
RETRY_AFTER_STEPS = 16
"""Steps without a draft for a request whose drafts were rejected, after which it gets one again."""
STEP_TIME_DECAY = 0.9
"""Weight of the past in the running means of step times and drafting times."""
ACCEPTANCE_DECAY = 0.9
"""Weight of the past in the running mean of the accepted share."""
RECHECK_AFTER_STEPS = 64
"""Steps in which drafting would not pay, after which it is tried once: load and texts change."""


class Drafter(Protocol):
    """Proposes how requests go on."""

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """Draft the next tokens of requests.

        Args:
            wanted: Most draft tokens for each request.

        Returns:
            Draft tokens in order, fewer than wanted or none where the drafter has no idea.
        """
        ...

    def forget(self, request: SequenceRequest) -> None:
        """Free what is kept for a request that has ended."""
        ...


@dataclass
class _DraftLength:
    """Length of one request's next draft.

    Attributes:
        tokens: Draft tokens of its next draft.
        waits: Steps until it gets a draft again.
    """

    tokens: int = FIRST_DRAFT_TOKENS
    waits: int = 0


class Speculation:
    """Decides which requests get how many draft tokens.

    Args:
        drafter: Drafts them.
        max_draft_tokens: Most draft tokens for one request in one step.
        max_rows: Most positions of a decode step, draft tokens included; a longer step is as slow as several.
    """

    def __init__(self, drafter: Drafter, *, max_draft_tokens: int, max_rows: int) -> None:
        self.drafter = drafter
        self.max_draft_tokens = max_draft_tokens
        self.max_rows = max_rows
        self.drafted = 0
        """Draft tokens verified since the start."""
        self.accepted = 0
        """Draft tokens accepted since the start."""
        self._lengths: dict[SequenceRequest, _DraftLength] = {}
        self._step_s: dict[int, float] = {}
        """Running mean of the seconds of a decode step, by its positions rounded up to a power of two."""
        self._drafting_s = 0.0
        """Running mean of the seconds that drafting takes."""
        self._refusals = 0
        """Steps in a row in which drafting would not have paid."""
        self._accepted_share = 0.5
        """Running mean of the share of draft tokens that are accepted."""

    def draft(self, requests: list[SequenceRequest]) -> dict[SequenceRequest, list[int]]:
        """Draft tokens for requests that decode, where it pays."""
        room = self.max_rows - len(requests)
        wanted: dict[SequenceRequest, int] = {}
        for request in requests:
            length = self._lengths.setdefault(request, _DraftLength())
            if length.waits:
                length.waits -= 1
                continue
            assert request.sampling is not None
            # The last token of an answer needs no draft token behind it.
            left = request.sampling.max_tokens - request.output_length - 1
            count = min(length.tokens, self.max_draft_tokens, left, room)
            if count > 0:
                wanted[request] = count
                room -= count
        if not wanted or not self._pays(len(requests), sum(wanted.values())):
            return {}
        began = time.perf_counter()
        drafts = self.drafter.draft(wanted)
        self._drafting_s = STEP_TIME_DECAY * self._drafting_s + (1 - STEP_TIME_DECAY) * (time.perf_counter() - began)
        return drafts

    def record_acceptance(self, request: SequenceRequest, drafted: int, accepted: int) -> None:
        """Note how many draft tokens were accepted: the next draft is longer if all were, shorter if none was."""
        self.drafted += drafted
        self.accepted += accepted
        self._accepted_share = ACCEPTANCE_DECAY * self._accepted_share + (1 - ACCEPTANCE_DECAY) * accepted / drafted
        length = self._lengths.get(request)
        if length is None:
            return
        if accepted == drafted:
            length.tokens = min(self.max_draft_tokens, length.tokens + 2)
        elif accepted == 0:
            length.tokens = max(1, length.tokens // 2)
            if length.tokens == 1:
                length.waits = RETRY_AFTER_STEPS

    def record_step_time(self, rows: int, seconds: float) -> None:
        """Note how long a step of decodes with `rows` positions took."""
        bucket = _bucket(rows)
        before = self._step_s.get(bucket)
        self._step_s[bucket] = seconds if before is None else STEP_TIME_DECAY * before + (1 - STEP_TIME_DECAY) * seconds

    def forget(self, request: SequenceRequest) -> None:
        """Free what is kept for a request that has ended."""
        self._lengths.pop(request, None)
        self.drafter.forget(request)

    def _pays(self, rows: int, drafted: int) -> bool:
        """Return whether a step with draft tokens brings more tokens a second; True until both were measured."""
        plain, longer = self._step_s.get(_bucket(rows)), self._step_s.get(_bucket(rows + drafted))
        if plain is None or longer is None:
            return True
        pays = (rows + drafted * self._accepted_share) / (longer + self._drafting_s) > rows / plain
        self._refusals = 0 if pays else self._refusals + 1
        if self._refusals == RECHECK_AFTER_STEPS:
            self._refusals = 0
            return True
        return pays


def _bucket(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
