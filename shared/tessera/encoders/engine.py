"""The encoder engine: a bounded queue of requests; a step encodes texts of several requests in one row.

A request's texts may be spread over many steps; it is answered once, when all are encoded. A cancel takes effect
between steps. Knows nothing about text or HTTP.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from tessera.encoders.encoder import Encoder
from tessera.encoders.turns import EncodeRequest, Share, Turns
from tessera.engine import waiting_room
from tessera.engine.process import failed
from tessera.engine.stages import StageTimer
from tessera.engine.waits import WaitMeter
from tessera.errors import DeadlineError, InternalError, InvalidRequestError, OverloadedError
from tessera.settings.encoders import EncoderEngineSettings
from tessera.wire.engine import Array, Encode, Encoded, FromEngine, Ready, ToEngine


class EncoderEngine:
    """Implements `tessera.engine.process.Engine` for several encoders.

    Args:
        encoders: in the order of the cards of `ready`.
        settings: budgets and limits.
        ready: returned by `ready`.
    """

    def __init__(self, encoders: Sequence[Encoder], settings: EncoderEngineSettings, ready: Ready) -> None:
        self.encoders = list(encoders)
        self.settings = settings
        self._ready = ready
        self._turns = Turns()
        self._requests: dict[str, EncodeRequest] = {}
        self._arrivals = itertools.count()
        self._meter = WaitMeter()
        self._timer = StageTimer("schedule", "forward")
        self._counts = dict.fromkeys(("steps_total", "computed_tokens_total", "encoded_texts_total"), 0)
        self._batch_tokens = self._batch_texts = 0

    def ready(self) -> Ready:
        """The models that the engine has loaded."""
        return self._ready

    def submit(self, message: ToEngine) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            InvalidRequestError: the message is not for this engine, or a text is empty or too long.
        """
        if not isinstance(message, Encode):
            raise InvalidRequestError(f"the encoder engine does not know {type(message).__name__}")
        waiting = Counter(request.message.tenant for request in self._requests.values())
        if not waiting_room.takes(message.tenant, waiting, self.settings.max_waiting):
            wait_s = self._meter.wait(len(self._requests))
            raise OverloadedError(
                f"{len(self._requests)} requests are already waiting, for about {wait_s:.0f} s; try again then",
                retry_after=wait_s,
            )
        most = self.encoders[message.model].card.context_length or 0
        if not message.texts or not all(0 < len(text.token_ids) <= most for text in message.texts):
            raise InvalidRequestError(f"every text must have 1 to {most} tokens")
        deadline = None if message.deadline_s is None else time.monotonic() + message.deadline_s
        request = EncodeRequest(message, next(self._arrivals), deadline)
        self._requests[message.request_id] = request
        self._turns.add(request)
        self._meter.came(1, len(self._requests))

    def cancel(self, request_id: str) -> None:
        """Forget a request; an unknown one is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._turns.remove(request)

    def has_work(self) -> bool:
        """Whether a request is queued."""
        return bool(self._requests)

    def step(self) -> Iterable[FromEngine]:
        """Encode the texts whose turn it is, and answer the requests that are complete."""
        with self._timer.time("schedule"):
            yield from self._end_late()
            shares = self._turns.take(self.settings.max_batch_tokens)
        if not shares:
            return
        with self._timer.time("forward"):
            answers = list(self._encode(shares))
        yield from answers

    def _end_late(self) -> Iterator[FromEngine]:
        now = time.monotonic()
        late = [one for one in self._requests.values() if one.deadline is not None and one.deadline < now]
        for request in late:
            self.cancel(request.message.request_id)
            yield failed(request.message.request_id, DeadlineError("the deadline passed before all texts were encoded"))

    def _encode(self, shares: list[Share]) -> Iterator[FromEngine]:
        texts = [text for share in shares for text in share.request.message.texts[share.begin : share.end]]
        self._batch_tokens = sum(len(text.token_ids) for text in texts)
        self._batch_texts = len(texts)
        try:
            rows = self.encoders[shares[0].request.message.model].run(texts)
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
            if len(shares) > 1:  # nothing says which request is at fault
                for share in shares:
                    yield from self._encode([share])
            else:
                self.cancel(shares[0].request.message.request_id)
                yield failed(shares[0].request.message.request_id, error)
            return
        self._counts["steps_total"] += 1
        self._counts["computed_tokens_total"] += self._batch_tokens
        self._counts["encoded_texts_total"] += self._batch_texts
        for share, part in zip(shares, torch.split(rows, [share.end - share.begin for share in shares]), strict=True):
            share.request.rows.append(part)
            answer = self._finish(share.request)
            if answer is not None:
                yield answer

    def _finish(self, request: EncodeRequest) -> FromEngine | None:
        """The answer to a request whose part was encoded; None while texts are left."""
        request_id = request.message.request_id
        if not torch.isfinite(request.rows[-1]).all():
            self.cancel(request_id)
            return failed(request_id, InternalError("the model's output is not finite (overflow); try another text"))
        if request.taken < len(request.message.texts):
            return None
        self.cancel(request_id)
        data = np.ascontiguousarray(torch.cat(request.rows).numpy(), dtype="<f4")
        return Encoded(request_id=request_id, rows=Array(dtype="float32", shape=list(data.shape), data=data.tobytes()))

    def metrics(self) -> dict[str, float]:
        """The queue, the last step, and what was done since the start."""
        running = sum(request.taken > 0 for request in self._requests.values())
        return {
            "requests_running": running,
            "requests_waiting": len(self._requests) - running,
            "batch_tokens": self._batch_tokens,
            "batch_texts": self._batch_texts,
            **self._counts,
            **self._timer.metrics(),
        }
