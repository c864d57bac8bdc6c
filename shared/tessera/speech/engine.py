"""The speech engine: a bounded queue of requests; a step is one window of a text and one step of all recordings.

Tenants take turns, and so do their texts, after every window, see `tessera.speech.synthesis.request`; with a codec
language model they share their steps, see `tessera.speech.codec.queue`. Recordings share theirs, see
`tessera.speech.transcription.queue`. A cancel takes effect between steps. Every request draws from random numbers of
its own, so that its result does not depend on what runs beside it. Knows nothing about the insides of models, text or
HTTP.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import count

from tessera.engine import waiting_room
from tessera.engine.process import failed
from tessera.engine.waits import WaitMeter
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.speech.codec.queue import CodecSpeechQueue
from tessera.speech.synthesis.request import SynthesisRequest, advance_together
from tessera.speech.synthesis.vits import Synthesizer
from tessera.speech.transcription.queue import TranscriptionQueue
from tessera.speech.transcription.transcriber import Transcriber
from tessera.wire.engine import (
    FromEngine,
    Ready,
    Synthesize,
    ToEngine,
    Transcribe,
)


class SpeechEngine:
    """Implements `tessera.engine.process.Engine` for a synthesizer and a transcriber.

    Args:
        synthesizer: the synthesis model, or the queue of a codec language model.
        transcriber: the transcription model.
        max_waiting: requests that it holds at once, including those in flight.
        ready: returned by `ready`.
        max_windows: windows of recordings that are transcribed together.
    """

    def __init__(
        self,
        synthesizer: Synthesizer | CodecSpeechQueue,
        transcriber: Transcriber,
        *,
        max_waiting: int,
        ready: Ready,
        max_windows: int = 16,
    ) -> None:
        self.synthesizer = synthesizer
        self._codec_queue = synthesizer if isinstance(synthesizer, CodecSpeechQueue) else None
        self.transcriber = transcriber
        self.max_waiting = max_waiting
        self._ready = ready
        self._syntheses: deque[SynthesisRequest] = deque()
        self._transcriptions = TranscriptionQueue(transcriber, max_windows=max_windows)
        self._last_turns: dict[str, int] = {}
        """Number of the last turn of each tenant whose texts wait."""
        self._turn_numbers = count(1)
        self._synthesized_s = 0.0
        self._meter = WaitMeter()

    def ready(self) -> Ready:
        """The models that the engine has loaded."""
        return self._ready

    def submit(self, message: ToEngine) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            InvalidRequestError: the message is not a speech request, or is empty.
        """
        if not isinstance(message, Synthesize | Transcribe):
            raise InvalidRequestError(f"the speech engine does not know {type(message).__name__}")
        if not waiting_room.takes(message.tenant, Counter(self._tenants()), self.max_waiting):
            wait_s = self._meter.wait(self._queued)
            raise OverloadedError(
                f"{self._queued} speech requests are already waiting, for about {wait_s:.0f} s; try again then",
                retry_after=wait_s,
            )
        if isinstance(message, Synthesize):
            if isinstance(self.synthesizer, CodecSpeechQueue):
                self.synthesizer.submit(message)
            else:
                self._syntheses.append(SynthesisRequest(message, self.synthesizer))
        else:
            self._transcriptions.submit(message)
        self._meter.came(1, self._queued)

    def cancel(self, request_id: str) -> None:
        """Forget a request; an unknown one is no error."""
        self._syntheses = deque(request for request in self._syntheses if request.message.request_id != request_id)
        self._transcriptions.cancel(request_id)
        if self._codec_queue is not None:
            self._codec_queue.cancel(request_id)

    @property
    def _queued(self) -> int:
        """Requests that wait or are in flight."""
        return (
            len(self._syntheses)
            + len(self._transcriptions)
            + (len(self._codec_queue) if self._codec_queue is not None else 0)
        )

    def _tenants(self) -> Iterator[str]:
        """The tenant of each request that waits or is in flight."""
        yield from (request.message.tenant for request in self._syntheses)
        yield from self._transcriptions.tenants()
        if self._codec_queue is not None:
            yield from self._codec_queue.tenants()

    def has_work(self) -> bool:
        """Whether a request is queued."""
        return self._queued > 0

    def step(self) -> Iterable[FromEngine]:
        """Synthesize a window of the next text, or a frame of all texts; and run a step of the recordings."""
        if self._syntheses:
            yield from self._synthesize(self._take_text())
        if self._codec_queue is not None and len(self._codec_queue):
            yield from self._codec_queue.step()
        if len(self._transcriptions):
            yield from self._transcriptions.step()

    def _take_text(self) -> SynthesisRequest:
        """Take the text whose turn it is: tenants take turns, and so do the texts of each."""
        first_texts: dict[str, SynthesisRequest] = {}
        for request in self._syntheses:
            first_texts.setdefault(request.message.tenant, request)
        self._last_turns = {tenant: self._last_turns.get(tenant, 0) for tenant in first_texts}
        tenant = min(first_texts, key=self._last_turns.__getitem__)
        self._last_turns[tenant] = next(self._turn_numbers)
        self._syntheses.remove(first_texts[tenant])
        return first_texts[tenant]

    def _synthesize(self, first: SynthesisRequest) -> list[FromEngine]:
        """Synthesize a window of `first`, in one forward with windows of other texts that have its length."""
        answers: list[FromEngine] = []
        together: list[SynthesisRequest] = []
        length = 0
        for request in [first, *self._syntheses]:
            if len(together) == max(1, first.synthesizer.windows_per_forward):
                break
            try:
                found = request.prepare()
            except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
                answers.append(failed(request.message.request_id, error))
                self.cancel(request.message.request_id)
                if request is first:
                    return answers
                continue
            length = length if together else found
            if found == length:
                together.append(request)
        for request in together[1:]:
            self._syntheses.remove(request)
        try:
            done = list(zip(together, advance_together(together), strict=True))
        except Exception as error:  # noqa: BLE001 - see above
            # Nothing says which request is at fault: the first one fails, the others try again.
            self._syntheses.extendleft(reversed(together[1:]))
            return [*answers, failed(first.message.request_id, error)]
        for request, (answer, seconds) in done:
            self._synthesized_s += seconds
            answers.append(answer)
            if not answer.last:
                self._syntheses.append(request)
        return answers

    def metrics(self) -> dict[str, float]:
        """Requests by state, pages of the KV cache, and seconds of audio processed since the start."""
        running = sum(request.started for request in self._syntheses) + self._transcriptions.running
        synthesized_s, pages = self._synthesized_s, {}
        if self._codec_queue is not None:
            running, synthesized_s = (
                running + self._codec_queue.running,
                synthesized_s + self._codec_queue.synthesized_s,
            )
            pages = self._codec_queue.metrics()
        return {
            "requests_waiting": self._queued - running,
            "requests_running": running,
            **pages,
            "synthesized_audio_seconds_total": synthesized_s,
            "transcribed_audio_seconds_total": self._transcriptions.transcribed_s,
        }
