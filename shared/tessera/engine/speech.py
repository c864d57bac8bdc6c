"""The speech engine: a bounded queue of requests, one unit of work a step, in turns.

A unit is a window of a sentence to speak or a window to transcribe. Requests take turns after every unit, so that an
hour of audio does not keep a sentence waiting, and a cancel takes effect between units. Every request draws from its
own random numbers, so that its result does not depend on what runs beside it. Does not know models' insides, text or
HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from tessera.engine.process import failed
from tessera.engine.synthesis import SynthesisRequest, advance_together
from tessera.errors import InvalidRequestError, OverloadedError
from tessera.models.speech_random import RandomStream
from tessera.models.speech_synthesis import Synthesizer
from tessera.models.speech_transcription import Transcriber
from tessera.wire.engine import (
    Array,
    FromEngine,
    Ready,
    Synthesize,
    ToEngine,
    Transcribe,
    Transcript,
    TranscriptSegment,
    TranscriptWord,
)

MIN_REST_S = 0.1
"""What is left of a recording after its windows is dropped when it is shorter: nothing can be said in it."""
RETRY_AFTER_S = 2.0


class TranscriptionRequest:
    """A recording being transcribed, window by window."""

    def __init__(self, message: Transcribe, transcriber: Transcriber) -> None:
        self.message = message
        self.transcriber = transcriber
        self.samples = _samples(message.audio)
        self.random = RandomStream(message.seed, transcriber.device)
        self.language = message.language
        self.position_s = 0.0
        self.window = int(transcriber.window_s * transcriber.sample_rate)
        self.timestamps = message.timestamps or len(self.samples) > self.window

    @property
    def started(self) -> bool:
        """Whether a unit has been done."""
        return self.position_s > 0

    def advance(self) -> tuple[Transcript, float]:
        """Transcribe the next window. The second value is the seconds of audio that it moved on by."""
        transcriber, message, rate = self.transcriber, self.message, self.transcriber.sample_rate
        first = round(self.position_s * rate)
        piece = self.samples[first : first + self.window]
        features = transcriber.features(piece)
        if self.language is None:
            self.language = transcriber.detect_language(features)
        heard = transcriber.transcribe(
            features,
            seconds=len(piece) / rate,
            language=self.language,
            prompt_ids=message.prompt_ids,
            temperature=message.temperature,
            timestamps=self.timestamps,
            random=self.random,
        )
        segments = [_later(segment, self.position_s) for segment in heard.segments]
        self.position_s += heard.advance_s
        last = len(self.samples) / rate - self.position_s < MIN_REST_S
        answer = Transcript(request_id=message.request_id, segments=segments, language=self.language or "", last=last)
        return answer, heard.advance_s


class SpeechEngine:
    """Implements `tessera.engine.process.Engine` for a synthesizer and a transcriber.

    Args:
        max_waiting: requests it holds at once, the ones in work among them.
        ready: what `ready` answers.
    """

    def __init__(self, synthesizer: Synthesizer, transcriber: Transcriber, *, max_waiting: int, ready: Ready) -> None:
        self.synthesizer = synthesizer
        self.transcriber = transcriber
        self.max_waiting = max_waiting
        self._ready = ready
        self._turns: deque[SynthesisRequest | TranscriptionRequest] = deque()
        self._spoken_s = 0.0
        self._heard_s = 0.0

    def ready(self) -> Ready:
        """What was loaded."""
        return self._ready

    def submit(self, message: ToEngine) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            InvalidRequestError: not a speech request, or one that is empty.
        """
        if len(self._turns) >= self.max_waiting:
            raise OverloadedError(
                f"{self.max_waiting} speech requests are already waiting; try again in a moment",
                retry_after=RETRY_AFTER_S,
            )
        if isinstance(message, Synthesize):
            self._turns.append(SynthesisRequest(message, self.synthesizer))
        elif isinstance(message, Transcribe):
            self._turns.append(TranscriptionRequest(message, self.transcriber))
        else:
            raise InvalidRequestError(f"the speech engine does not know {type(message).__name__}")

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._turns = deque(request for request in self._turns if request.message.request_id != request_id)

    def has_work(self) -> bool:
        """Whether a request is queued."""
        return bool(self._turns)

    def step(self) -> Iterable[FromEngine]:
        """One unit of the request whose turn it is, and of those that can be spoken together with it."""
        if not self._turns:
            return []
        request = self._turns.popleft()
        if isinstance(request, SynthesisRequest):
            return self._speak(request)
        try:
            answer, seconds = request.advance()
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
            return [failed(request.message.request_id, error)]
        self._heard_s += seconds
        if not answer.last:
            self._turns.append(request)
        return [answer]

    def _speak(self, first: SynthesisRequest) -> list[FromEngine]:
        """A unit of `first` and of others whose next windows have its length, in one forward."""
        answers: list[FromEngine] = []
        together: list[SynthesisRequest] = []
        length = 0
        for request in [first, *(other for other in self._turns if isinstance(other, SynthesisRequest))]:
            if len(together) == max(1, self.synthesizer.together):
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

    def gauges(self) -> dict[str, float]:
        """Requests by state, and seconds of audio done since the start."""
        running = sum(request.started for request in self._turns)
        return {
            "waiting_requests": len(self._turns) - running,
            "running_requests": running,
            "synthesized_audio_seconds": self._spoken_s,
            "transcribed_audio_seconds": self._heard_s,
        }


def _later(segment: TranscriptSegment, seconds: float) -> TranscriptSegment:
    return TranscriptSegment(
        start=segment.start + seconds,
        end=segment.end + seconds,
        token_ids=segment.token_ids,
        words=[
            TranscriptWord(start=word.start + seconds, end=word.end + seconds, token_ids=word.token_ids)
            for word in segment.words
        ],
    )


def _samples(audio: Array) -> np.ndarray[Any, Any]:
    if audio.dtype != "float32" or len(audio.shape) != 1 or len(audio.data) != 4 * audio.shape[0] or not audio.data:
        raise InvalidRequestError("audio must be float32 of shape [samples], at least one", param="file")
    return np.frombuffer(audio.data, dtype="<f4")
