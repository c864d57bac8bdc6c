"""A draft model: a smaller one with the same tokens guesses how requests go on.

It samples with each request's own noise, as the target will (Gumbel coupling: Daliri, Musco & Suresh 2024, "Coupling
without Communication and Drafter-Invariant Speculative Decoding"), so guesses are confirmed about as often at any
temperature. Its keys and values are in pages of its own; requests that find none there get no guesses.

Does not know the target model, nor how much to guess: see `tessera.sequence.speculation.policy`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from tessera.cache.pages import PageAllocator
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner.protocol import BatchRunner
from tessera.sequence.sampling.sampler import sample

logger = logging.getLogger(__name__)


@dataclass
class _Shadow:
    """A request as the draft model has it: the same tokens, and guesses behind them while it guesses."""

    own: SequenceRequest
    known: int
    """Tokens of the request that it has; those behind are guesses of last time."""


class DraftModel:
    """Guesses by a model. Implements `tessera.sequence.speculation.policy.Drafter`.

    Args:
        runner: of the draft model.
        max_tokens: positions computed in one forward; a long prompt is caught up with over several steps.
        vocabulary: token ids of the target model; a guess beyond them is none.
    """

    def __init__(self, runner: BatchRunner, *, max_tokens: int, vocabulary: int) -> None:
        self.runner = runner
        self.allocator = PageAllocator(runner.pages, runner.page_size)
        self._max_tokens = max_tokens
        self._vocabulary = vocabulary
        self._shadows: dict[SequenceRequest, _Shadow] = {}
        self._failed = False

    def draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        """As `Drafter.draft`. A draft model that fails is not asked again: answers do not depend on it."""
        if self._failed:
            return {}
        try:
            return self._draft(wanted)
        except (RuntimeError, ValueError, IndexError) as error:
            if "CUDA error" in str(error):  # the device's context is lost, for the target model too
                raise
            logger.exception("the draft model failed; from here on nothing is guessed")
            self._failed = True
            for request in list(self._shadows):
                self.forget(request)
            return {}

    def forget(self, request: SequenceRequest) -> None:
        """As `Drafter.forget`."""
        shadow = self._shadows.pop(request, None)
        if shadow is not None:
            self.allocator.release(shadow.own.pages)

    def _draft(self, wanted: dict[SequenceRequest, int]) -> dict[SequenceRequest, list[int]]:
        chunks, budget = [], self._max_tokens
        # By shadow: the request, and how many tokens to guess for it.
        left: dict[SequenceRequest, tuple[SequenceRequest, int]] = {}
        for request, asked in wanted.items():
            most = min(asked, self.runner.context_length - len(request.token_ids))
            if most < 1 or budget == 0 or request.media is not None:
                continue
            shadow = self._caught_up(request)
            count = min(shadow.remaining, budget)
            if not self._has_room(shadow, shadow.computed + count + most - 1):
                continue
            chunks.append(Chunk(shadow, shadow.computed, count))
            budget -= count
            left[shadow] = request, most
        found: dict[SequenceRequest, list[int]] = {}
        while chunks:
            output = self.runner.run(Batch(chunks))
            ends = [chunk.request for chunk in chunks if chunk.completes]
            for chunk in chunks:
                chunk.request.computed = chunk.start + chunk.count
            chunks = []
            for shadow, sampled in zip(ends, sample(output.logits_RV, ends), strict=True):
                request, most = left[shadow]
                token = sampled.token_id
                if token is None or token >= self._vocabulary:
                    continue
                guess = found.setdefault(request, [])
                guess.append(token)
                shadow.append(token)
                if len(guess) < most:
                    chunks.append(Chunk(shadow, shadow.computed, 1))
        return found

    def _caught_up(self, request: SequenceRequest) -> SequenceRequest:
        """The request's shadow with the request's tokens; what was guessed wrong is forgotten."""
        shadow = self._shadows.get(request)
        if shadow is None:
            assert request.sampling is not None
            own = SequenceRequest(
                request.request_id, [], msgspec.structs.replace(request.sampling, logprobs=None, prompt_logprobs=None)
            )
            own.prompt_length = request.prompt_length
            shadow = self._shadows[request] = _Shadow(own, 0)
        own, tokens = shadow.own, request.token_ids
        same = shadow.known
        while same < min(len(own.token_ids), len(tokens)) and own.token_ids[same] == tokens[same]:
            same += 1
        own.computed = min(own.computed, same, len(tokens) - 1)
        own.token_ids[same:] = tokens[same:]
        shadow.known = len(tokens)
        own.noise_seed = request.noise_seed
        return own

    def _has_room(self, shadow: SequenceRequest, positions: int) -> bool:
        """Give a shadow pages for so many positions, if there are any."""
        missing = self.allocator.pages_for(positions) - len(shadow.pages)
        if missing > 0:
            if not self.allocator.can_allocate(missing):
                return False
            shadow.pages += self.allocator.allocate(missing, shadow.pages[-1] if shadow.pages else None)
        return True
