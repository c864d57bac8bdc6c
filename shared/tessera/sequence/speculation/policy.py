"""Speculation: guessing the next tokens, so that one step can confirm several.

What is drafted changes no answer. The engine samples at every drafted position as it would have without the guess, with
the request's own noise, and goes on while the sample is what was drafted: the same text at any temperature, with fewer
steps. How many tokens are drafted follows what was accepted before, and stops where a longer step costs more than it
brings; both are measured while serving.

Does not know tensors of the target model: `NGramDrafter` needs none, and a draft model is behind `Drafter`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from tessera.sequence.request import SequenceRequest

LONGEST_NGRAM, SHORTEST_NGRAM = 4, 2
FIRST_LENGTH = 2
RETRY_AFTER = 16
"""Tokens after which a request that drafted wrong is tried again."""
STEP_MEMORY = 0.9
"""Weight of the past in the running means of what steps take."""
ACCEPTANCE_MEMORY = 0.9
LOOK_AGAIN = 64
"""Steps in which guessing would not pay, after which it is tried once more: load and texts change."""


class Drafter(Protocol):
    """Guesses how requests go on."""

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """At most so many next tokens for each request, likeliest first in time; fewer or none where it has no idea."""
        ...

    def forget(self, request: SequenceRequest) -> None:
        """A request has ended."""
        ...


@dataclass
class _Seen:
    """Where the n-grams of one request ended last, by their tokens."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    indexed: int = 0


class NGramDrafter:
    """Guesses that what followed the last tokens before follows them again (prompt lookup, Saxena 2023)."""

    def __init__(self) -> None:
        self._seen: dict[SequenceRequest, _Seen] = {}

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """As `Drafter.draft`."""
        found = {request: self._guess(request, most) for request, most in wanted.items()}
        return {request: tokens for request, tokens in found.items() if tokens}

    def forget(self, request: SequenceRequest) -> None:
        """As `Drafter.forget`."""
        self._seen.pop(request, None)

    def _guess(self, request: SequenceRequest, most: int) -> list[int]:
        tokens = request.token_ids
        seen = self._seen.setdefault(request, _Seen())
        # The last n-gram itself is indexed only when something follows it.
        for end in range(max(seen.indexed, SHORTEST_NGRAM), len(tokens)):
            for length in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end) + 1):
                seen.ends[tuple(tokens[end - length : end])] = end
        seen.indexed = len(tokens)
        for length in range(min(LONGEST_NGRAM, len(tokens) - 1), SHORTEST_NGRAM - 1, -1):
            place = seen.ends.get(tuple(tokens[-length:]))
            if place is not None:
                guess: list[int] = []
                for index in range(place, place + most):  # beyond the end a repetition repeats itself
                    guess.append(tokens[index] if index < len(tokens) else guess[index - len(tokens)])
                return guess
        return []


@dataclass
class _Pace:
    """How far ahead a request may guess."""

    length: int = FIRST_LENGTH
    waits: int = 0


class Speculation:
    """Decides who guesses how much.

    Args:
        drafter: makes the guesses.
        max_draft_tokens: tokens drafted for one request in one step.
        max_rows: positions of a decode step, guesses included; longer steps are no longer cheaper than several.
    """

    def __init__(self, drafter: Drafter, *, max_draft_tokens: int, max_rows: int) -> None:
        self.drafter = drafter
        self.max_draft_tokens = max_draft_tokens
        self.max_rows = max_rows
        self.drafted = 0
        self.accepted = 0
        self._paces: dict[SequenceRequest, _Pace] = {}
        self._seconds: dict[int, float] = {}
        """Running mean of what a decode step takes, by its positions rounded up to a power of two."""
        self._drafting_s = 0.0
        """Running mean of the seconds that guessing takes."""
        self._refused = 0
        self._share = 0.5
        """Running mean of the share of guesses that are accepted."""

    def draft(self, requests: list[SequenceRequest]) -> dict[SequenceRequest, list[int]]:
        """Guesses for requests that decode; for those where it pays."""
        room = self.max_rows - len(requests)
        wanted: dict[SequenceRequest, int] = {}
        for request in requests:
            pace = self._paces.setdefault(request, _Pace())
            if pace.waits:
                pace.waits -= 1
                continue
            assert request.sampling is not None
            # The last token of an answer needs no guess behind it.
            left = request.sampling.max_tokens - request.output_length - 1
            most = min(pace.length, self.max_draft_tokens, left, room)
            if most > 0:
                wanted[request] = most
                room -= most
        if not wanted or not self._pays(len(requests), sum(wanted.values())):
            return {}
        began = time.perf_counter()
        found = self.drafter.draft(wanted)
        self._drafting_s = STEP_MEMORY * self._drafting_s + (1 - STEP_MEMORY) * (time.perf_counter() - began)
        return found

    def record_acceptance(self, request: SequenceRequest, drafted: int, accepted: int) -> None:
        """Note how a guess went: longer next time when all of it was right, shorter when nothing was."""
        self.drafted += drafted
        self.accepted += accepted
        self._share = ACCEPTANCE_MEMORY * self._share + (1 - ACCEPTANCE_MEMORY) * accepted / drafted
        pace = self._paces.get(request)
        if pace is None:
            return
        if accepted == drafted:
            pace.length = min(self.max_draft_tokens, pace.length + 2)
        elif accepted == 0:
            pace.length = max(1, pace.length // 2)
            if pace.length == 1:
                pace.waits = RETRY_AFTER

    def record_step_time(self, rows: int, seconds: float) -> None:
        """Note how long a step of decodes with `rows` positions took."""
        bucket = _bucket(rows)
        before = self._seconds.get(bucket)
        self._seconds[bucket] = seconds if before is None else STEP_MEMORY * before + (1 - STEP_MEMORY) * seconds

    def forget(self, request: SequenceRequest) -> None:
        """A request has ended."""
        self._paces.pop(request, None)
        self.drafter.forget(request)

    def _pays(self, rows: int, drafted: int) -> bool:
        """Whether the longer step brings more tokens a second than the shorter one; True until both were measured."""
        plain, longer = self._seconds.get(_bucket(rows)), self._seconds.get(_bucket(rows + drafted))
        if plain is None or longer is None:
            return True
        pays = (rows + drafted * self._share) / (longer + self._drafting_s) > rows / plain
        self._refused = 0 if pays else self._refused + 1
        if self._refused == LOOK_AGAIN:
            self._refused = 0
            return True
        return pays


def _bucket(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
