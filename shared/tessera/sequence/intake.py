"""Intake of the sequence engine: checks messages, turns them into requests, and holds requests until they run.

A request waits for its grammar, for its images to be encoded, and to be admitted; `SequenceRequest.state` says for
which. Knows nothing about pages, compilers or encoders.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence

from tessera.engine import waiting_room
from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.sequence.fair_queue import FairQueue
from tessera.sequence.request import RequestState, SequenceRequest
from tessera.wire.engine import Array, Embed, Generate

_Held = tuple[SequenceRequest, dict[str, Array]]
"""A request that cannot be computed yet, and its images."""


class Intake:
    """All requests of one engine that wait.

    Args:
        max_waiting: Requests that may wait before new ones are refused.
        running: The requests that run. Its owner changes it; only the wait of refused requests is estimated from it.
    """

    def __init__(self, max_waiting: int, running: Sequence[SequenceRequest] = ()) -> None:
        self.max_waiting = max_waiting
        self._running = running
        self.queue = FairQueue()
        """Requests in state WAITING, in order of admission."""
        self._preparing: dict[RequestState, dict[str, _Held]] = {
            RequestState.AWAITING_GRAMMAR: {},
            RequestState.AWAITING_ENCODER: {},
        }
        """Requests in the states before that, by id, in the order in which they came to the state."""
        self._meter = WaitMeter()

    def __len__(self) -> int:
        return len(self.queue) + sum(map(len, self._preparing.values()))

    def count(self, state: RequestState) -> int:
        """Return the number of requests in a state that waits."""
        return len(self.queue) if state is RequestState.WAITING else len(self._preparing[state])

    def check_room(self, state: RequestState = RequestState.WAITING, tenant: str = "") -> None:
        """Check that a request may come to `state`: it waits behind all that are in this state or nearer to running.

        When `max_waiting` wait, a tenant that has less than its share of the places still gets in, so that nobody's
        requests keep the others out; no more than twice as many wait then.

        Raises:
            OverloadedError: `max_waiting` are.
        """
        ahead = len(self.queue) + sum(len(some) for other, some in self._preparing.items() if other >= state)
        # Counted only where it matters, because every request comes here.
        if ahead >= self.max_waiting and not waiting_room.takes(tenant, self._counts(), self.max_waiting, ahead):
            wait_s = self._meter.wait(self._work_left())
            raise OverloadedError(
                f"{ahead} requests are waiting, which is the limit, for about {wait_s:.0f} s; try again then",
                retry_after=wait_s,
            )

    def _counts(self) -> Counter[str]:
        """Requests that wait, by tenant."""
        counts = self.queue.waiting()
        for held in self._preparing.values():
            counts.update(request.tenant for request, _ in held.values())
        return counts

    def hold(self, request: SequenceRequest, state: RequestState, media: dict[str, Array]) -> None:
        """Let a request wait for its grammar or its images. Ask `check_room` first.

        Args:
            request: A request that waits nowhere yet.
            state: AWAITING_GRAMMAR or AWAITING_ENCODER.
            media: Its images, which are kept with it.
        """
        request.state = state
        self._preparing[state][request.request_id] = request, media
        self._meter.came(_work_of(request), self._work_left())

    def take(self, state: RequestState, request_id: str) -> _Held:
        """Take a request out of AWAITING_GRAMMAR or AWAITING_ENCODER, with its images."""
        held = self._preparing[state].pop(request_id)
        self._meter.came(-_work_of(held[0]), self._work_left())  # it comes again at once, to a later state
        return held

    def take_first(self, state: RequestState) -> _Held:
        """Take the next request out of AWAITING_GRAMMAR or AWAITING_ENCODER. Ask `count` first.

        Priority decides, then whose tenant has fewest requests behind this state, then who came to it first.
        """
        held = self._preparing[state]
        return self.take(state, min(held, key=lambda name: self._place(held[name][0])))

    def _place(self, request: SequenceRequest) -> tuple[int, int]:
        return request.priority, self.queue.active(request.tenant)

    def cancel(self, request_id: str) -> RequestState | None:
        """Forget a request that waits for its grammar or its images.

        Returns:
            The state that it was in, or None if it was in neither.
        """
        for state, held in self._preparing.items():
            if request_id in held:
                held.pop(request_id)[0].state = RequestState.ENDED
                return state
        return None

    def enqueue(self, request: SequenceRequest) -> None:
        """Let a request wait to be admitted; one that was preempted gets its old place."""
        request.state = RequestState.WAITING
        self.queue.add(request)
        if not request.preemptions:
            self._meter.came(_work_of(request), self._work_left())

    def _work_left(self) -> float:
        """Tokens that all requests may still make, those included that run."""
        held = [request for some in self._preparing.values() for request, _ in some.values()]
        return sum(map(_work_of, (*held, *self.queue, *self._running)))


def _work_of(request: SequenceRequest) -> float:
    """Tokens that a request may still make; 1 for one that makes none."""
    return 1.0 if request.sampling is None else max(1.0, request.sampling.max_tokens - request.output_length)


def check_tokens(message: Generate | Embed, vocabulary: int) -> None:
    """Check that the model has all token ids of a message.

    Raises:
        InvalidRequestError: There are no token ids, or one is outside the vocabulary.
    """
    if not message.token_ids:
        raise InvalidRequestError("the prompt has no tokens", param="prompt")
    named = [("prompt", message.token_ids)]
    if isinstance(message, Generate):
        sampling = message.sampling
        named += [
            ("logit_bias", list(sampling.logit_bias)),
            ("bad_words", [token for sequence in sampling.banned for token in sequence]),
            ("allowed_token_ids", sampling.allowed_ids or []),
        ]
    for param, tokens in named:
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise InvalidRequestError(
                f"token {wrong[0]} is outside the model's vocabulary of {vocabulary}", param=param
            )


def to_request(message: Generate | Embed, *, isolated: bool) -> SequenceRequest:
    """Make a request of a message that `check_tokens` has passed.

    Args:
        message: What a service sent.
        isolated: Whether tenants share no cached prefixes, whatever their salts.
    """
    return SequenceRequest(
        message.request_id,
        list(message.token_ids),
        message.sampling if isinstance(message, Generate) else None,
        priority=message.priority,
        tenant=message.tenant,
        salt=f"{message.tenant}\0{message.cache_salt}" if isolated else message.cache_salt,
        pin=isinstance(message, Generate) and message.pin,
        deadline=math.inf if message.deadline_s is None else time.monotonic() + message.deadline_s,
    )


def media_cache_ids(media: dict[str, Array], positions: list[int]) -> dict[int, int]:
    """Return cache ids for image tokens: negative, and equal for equal media only.

    Args:
        media: All media of one request.
        positions: Positions of the image tokens in the prompt, in order.
    """
    digest = hashlib.sha256()
    for name in sorted(media):
        digest.update(f"{name}:{media[name].dtype}:{media[name].shape}:".encode())
        digest.update(media[name].data)
    base = int.from_bytes(digest.digest()[:7], "big") << 20
    return {position: -(base + index + 1) for index, position in enumerate(positions)}
