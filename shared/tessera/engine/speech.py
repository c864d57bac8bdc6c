"""The speech engine: a bounded queue of requests; a step is a sentence of one and a step of all recordings.

Texts take turns after every sentence; recordings share their steps, see `tessera.engine.speech_transcription`. A cancel
takes effect between steps. Every request draws from its own random numbers, so that its result does not depend on what
runs beside it. Does not know models' insides, text or HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from tessera.engine.process import failed
from tessera.engine.speech_transcription import TranscriptionQueue
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.models.speech_random import RandomStream
from tessera.models.speech_synthesis import Synthesizer
from tessera.models.speech_transcription import Transcriber
from tessera.wire.engine import (
    Array,
    Audio,
    FromEngine,
    Ready,
    Synthesize,
    ToEngine,
    Transcribe,
)

RETRY_AFTER_S = 2.0


class SynthesisRequest:
    """A text being spoken, sentence by sentence."""

    def __init__(self, message: Synthesize, synthesizer: Synthesizer) -> None:
        if not message.sentences:
            raise InvalidRequestError("there is nothing to speak", param="input")
        self.message = message
        self.synthesizer = synthesizer
        self.random = RandomStream(message.seed, synthesizer.device)
        self.spoken = 0

    @property
    def started(self) -> bool:
        """Whether a unit has been done."""
        return self.spoken > 0

    def advance(self) -> tuple[Audio, float]:
        """Speak the next sentence. The second value is its length in seconds."""
        message = self.message
        samples = self.synthesizer.speak(
            message.sentences[self.spoken], voice=message.voice, speed=message.speed, random=self.random
        )
        self.spoken += 1
        array = Array(dtype="float32", shape=[samples.numel()], data=samples.numpy().astype("<f4").tobytes())
        answer = Audio(request_id=message.request_id, samples=array, last=self.spoken == len(message.sentences))
        return answer, samples.numel() / self.synthesizer.sample_rate


class SpeechEngine:
    """Implements `tessera.engine.process.Engine` for a synthesizer and a transcriber.

    Args:
        max_waiting: requests it holds at once, the ones in work among them.
        max_windows: of recordings, transcribed together.
        ready: what `ready` answers.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        transcriber: Transcriber,
        *,
        max_waiting: int,
        ready: Ready,
        max_windows: int = 16,
    ) -> None:
        self.synthesizer = synthesizer
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
        if len(self._turns) + len(self._recordings) >= self.max_waiting:
            raise OverloadedError(
                f"{self.max_waiting} speech requests are already waiting; try again in a moment",
                retry_after=RETRY_AFTER_S,
            )
        if isinstance(message, Synthesize):
            self._turns.append(SynthesisRequest(message, self.synthesizer))
        elif isinstance(message, Transcribe):
            self._recordings.submit(message)
        else:
            raise InvalidRequestError(f"the speech engine does not know {type(message).__name__}")

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._turns = deque(request for request in self._turns if request.message.request_id != request_id)
        self._recordings.cancel(request_id)

    def has_work(self) -> bool:
        """Whether a request is queued."""
        return bool(self._turns or len(self._recordings))

    def step(self) -> Iterable[FromEngine]:
        """The next sentence of the text whose turn it is, and a step of the recordings."""
        if self._turns:
            yield self._speak()
        if len(self._recordings):
            yield from self._recordings.step()

    def _speak(self) -> FromEngine:
        request = self._turns.popleft()
        try:
            answer, seconds = request.advance()
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
            return failed(request.message.request_id, error)
        self._spoken_s += seconds
        if not answer.last:
            self._turns.append(request)
        return answer

    def gauges(self) -> dict[str, float]:
        """Requests by state, and seconds of audio done since the start."""
        running = sum(request.started for request in self._turns) + self._recordings.running
        return {
            "waiting_requests": len(self._turns) + len(self._recordings) - running,
            "running_requests": running,
            "synthesized_audio_seconds": self._spoken_s,
            "transcribed_audio_seconds": self._recordings.heard_s,
        }
