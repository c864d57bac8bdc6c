"""The speech engine: a bounded queue of requests; a step is a window of a text and a step of all recordings.

Texts take turns after every window, see `tessera.speech.synthesis.request`, or share their steps where the model is a
language model of a codec, see `tessera.speech.codec.queue`; recordings share theirs, see
`tessera.speech.transcription.queue`. A cancel takes effect between steps. Every request draws from its own random
numbers, so that its result does not depend on what runs beside it. Does not know models' insides, text or HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tessera.engine.process import failed
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

RETRY_AFTER_S = 2.0


class SpeechEngine:
    """Implements `tessera.engine.process.Engine` for a synthesizer and a transcriber.

    Args:
        max_waiting: requests it holds at once, the ones in work among them.
        max_windows: of recordings, transcribed together.
        ready: what `ready` answers.
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
        self._texts = synthesizer if isinstance(synthesizer, CodecSpeechQueue) else None
        self.transcriber = transcriber
        self.max_waiting = max_waiting
        self._ready = ready
        self._turns: deque[SynthesisRequest] = deque()
        self._recordings = TranscriptionQueue(transcriber, max_windows=max_windows)
        self._spoken_s = 0.0

    def ready(self) -> Ready:
        """What was loaded."""
        return self._ready

    def submit(self, message: ToEngine) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            InvalidRequestError: not a speech request, or one that is empty.
        """
        if self._held >= self.max_waiting:
            raise OverloadedError(
                f"{self.max_waiting} speech requests are already waiting; try again in a moment",
                retry_after=RETRY_AFTER_S,
            )
        if isinstance(message, Synthesize):
            if isinstance(self.synthesizer, CodecSpeechQueue):
                self.synthesizer.submit(message)
            else:
                self._turns.append(SynthesisRequest(message, self.synthesizer))
        elif isinstance(message, Transcribe):
            self._recordings.submit(message)
        else:
            raise InvalidRequestError(f"the speech engine does not know {type(message).__name__}")

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._turns = deque(request for request in self._turns if request.message.request_id != request_id)
        self._recordings.cancel(request_id)
        if self._texts is not None:
            self._texts.cancel(request_id)

    @property
    def _held(self) -> int:
        """Requests that wait or are in work."""
        return len(self._turns) + len(self._recordings) + (len(self._texts) if self._texts is not None else 0)

    def has_work(self) -> bool:
        """Whether a request is queued."""
        return self._held > 0

    def step(self) -> Iterable[FromEngine]:
        """A window of the text whose turn it is, or a frame of all texts; and a step of the recordings."""
        if self._turns:
            yield from self._speak(self._turns.popleft())
        if self._texts is not None and len(self._texts):
            yield from self._texts.step()
        if len(self._recordings):
            yield from self._recordings.step()

    def _speak(self, first: SynthesisRequest) -> list[FromEngine]:
        """A unit of `first` and of others whose next windows have its length, in one forward."""
        answers: list[FromEngine] = []
        together: list[SynthesisRequest] = []
        length = 0
        for request in [first, *self._turns]:
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
            self._turns.remove(request)
        try:
            done = list(zip(together, advance_together(together), strict=True))
        except Exception as error:  # noqa: BLE001 - see above
            # Whose fault it is cannot be told: the first is given up, the others take their turns again.
            self._turns.extendleft(reversed(together[1:]))
            return [*answers, failed(first.message.request_id, error)]
        for request, (answer, seconds) in done:
            self._spoken_s += seconds
            answers.append(answer)
            if not answer.last:
                self._turns.append(request)
        return answers

    def metrics(self) -> dict[str, float]:
        """Requests by state, and seconds of audio done since the start."""
        running = sum(request.started for request in self._turns) + self._recordings.running
        synthesized_s, pages = self._spoken_s, {}
        if self._texts is not None:
            running, synthesized_s = running + self._texts.running, synthesized_s + self._texts.synthesized_s
            pages = self._texts.metrics()
        return {
            "requests_waiting": self._held - running,
            "requests_running": running,
            **pages,
            "synthesized_audio_seconds_total": synthesized_s,
            "transcribed_audio_seconds_total": self._recordings.transcribed_s,
        }
