"""The queue of recordings in the speech engine: which windows run together, and their transcripts in order.

Continuous batching over windows: windows of all requests, and of one long recording, share each step; a window joins
when there is room and leaves when it ends. The request with the fewest windows in flight is served first, so that an
hour of audio does not keep a sentence waiting. Knows nothing about the insides of models, text or HTTP.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from tessera.engine.process import failed
from tessera.errors import InvalidRequestError
from tessera.speech.transcription.transcriber import Transcriber, WindowRequest, WindowTranscript
from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript, TranscriptSegment, TranscriptWord

MIN_REST_S = 0.1
"""Seconds of a rest after the last window below which it is dropped: nothing can be said in it."""


class RecordingRequest:
    """A recording being transcribed.

    Args:
        message: the request.
        transcriber: the model; a request that it cannot serve is refused here.

    Raises:
        InvalidRequestError: samples, windows or options that make no sense.
    """

    def __init__(self, message: Transcribe, transcriber: Transcriber) -> None:
        self.message = message
        self.samples = _samples(message.audio)
        self.rate = transcriber.sample_rate
        self.language = message.language
        self.last_served = 0
        """Number of the place in the batch that it got last; the queue counts the places that it gives away."""
        self.in_flight = 0
        """Its windows in the batch."""
        self._max_samples = int(transcriber.window_s * self.rate)
        self._timestamps = message.timestamps or message.words or len(self.samples) > self._max_samples
        self._begun_windows = 0
        self._collected = 0
        self._transcripts: dict[int, WindowTranscript] = {}
        self._starts: list[int] = [0]
        self._context: list[int] = []
        self._requeued: deque[int] = deque()
        cuts = message.windows
        if cuts is not None:
            self._starts = [first for first, _ in cuts]
            if not cuts or any(not 0 <= first < end <= len(self.samples) for first, end in cuts):
                raise InvalidRequestError("windows must lie in the recording and not be empty", param="file")
            if max(end - first for first, end in cuts) > self._max_samples:
                raise InvalidRequestError(f"windows are at most {transcriber.window_s:g} s long", param="file")
        transcriber.check(self._window(0))

    @property
    def started(self) -> bool:
        """Whether a window has been begun."""
        return self._begun_windows > 0

    @property
    def can_begin_window(self) -> bool:
        """Whether it has a window that can begin now."""
        if self._requeued:
            return True
        if self._begun_windows >= len(self._starts):
            return False
        # The first window detects the language for all.
        return self._begun_windows == 0 or self.language is not None

    def begin_window(self) -> tuple[int, WindowRequest]:
        """The number of the next window, and the window."""
        assert self.can_begin_window
        if self._requeued:
            number = self._requeued.popleft()
        else:
            number = self._begun_windows
            self._begun_windows += 1
        self.in_flight += 1
        return number, self._window(number)

    def requeue_window(self, number: int) -> None:
        """Begin a window again, whose work was lost."""
        self.in_flight -= 1
        self._requeued.append(number)

    def finish_window(self, number: int, transcript: WindowTranscript) -> float:
        """Take the transcript of a window. Returns the seconds of audio that it covers."""
        self.in_flight -= 1
        self._transcripts[number] = transcript
        self.language = self.language or transcript.language
        if self.message.windows is not None:
            return len(self._window(number).samples) / self.rate
        self._context = transcript.context
        position = self._starts[number] + round(transcript.advance_s * self.rate)
        if (len(self.samples) - position) / self.rate >= MIN_REST_S:
            self._starts.append(position)
        return transcript.advance_s

    def collect(self) -> Transcript | None:
        """The segments finished since the last call, in order; None while the next window is not finished."""
        segments: list[TranscriptSegment] = []
        before = self._collected
        while (transcript := self._transcripts.pop(self._collected, None)) is not None:
            seconds = (self.message.offset + self._starts[self._collected]) / self.rate
            segments += [_shifted(segment, seconds) for segment in transcript.segments]
            self._collected += 1
        if before == self._collected:
            return None
        last = self._collected == len(self._starts)
        return Transcript(
            request_id=self.message.request_id, segments=segments, language=self.language or "", last=last
        )

    def _window(self, number: int) -> WindowRequest:
        message = self.message
        first = self._starts[number]
        end = first + self._max_samples if message.windows is None else message.windows[number][1]
        return WindowRequest(
            samples=self.samples[first:end],
            rate=self.rate,
            language=self.language,
            prompt_ids=tuple(message.prompt_ids),
            context=tuple(self._context),
            temperature=message.temperature,
            timestamps=self._timestamps,
            words=message.words,
            translate=message.translate,
            seed=(message.seed + number) % 2**63,
            open_end=message.windows is None,
        )


class TranscriptionQueue:
    """The recordings of an engine.

    Args:
        transcriber: the model.
        max_windows: windows that run together at most.
    """

    def __init__(self, transcriber: Transcriber, *, max_windows: int) -> None:
        self._transcriber = transcriber
        self._batch = transcriber.batch(max_windows)
        self._max_windows = max_windows
        self._requests: list[RecordingRequest] = []
        self._in_flight: dict[int, tuple[RecordingRequest, int]] = {}
        self._suspects: deque[RecordingRequest] = deque()
        self._keys = count()
        self._turn_numbers = count(1)
        self._last_turns: dict[str, int] = {}
        """Number of the last place that each tenant got whose recordings are here."""
        self.transcribed_s = 0.0
        """Seconds of audio transcribed since the start."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def running(self) -> int:
        """Requests with a window that has begun."""
        return sum(request.started for request in self._requests)

    def tenants(self) -> Iterator[str]:
        """The tenant of each recording."""
        return (request.message.tenant for request in self._requests)

    def submit(self, message: Transcribe) -> None:
        """Queue a recording. Raises as `RecordingRequest` does."""
        self._requests.append(RecordingRequest(message, self._transcriber))

    def cancel(self, request_id: str) -> None:
        """Forget a request; its windows leave the batch now."""
        for request in [one for one in self._requests if one.message.request_id == request_id]:
            self._forget(request)

    def step(self) -> list[FromEngine]:
        """Run one step of all windows in the batch. Returns transcripts and failures."""
        self._fill()
        try:
            finished = self._batch.step()
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
            return self._requeue_after(error)
        known = self._batch.languages()
        changed: dict[int, RecordingRequest] = {}
        for key, (request, _) in self._in_flight.items():
            if request.language is None and key in known:
                request.language = known[key]
        for key, transcript in finished.items():
            request, number = self._in_flight.pop(key)
            self.transcribed_s += request.finish_window(number, transcript)
            changed[id(request)] = request
        answers: list[FromEngine] = []
        for request in changed.values():
            answer = request.collect()
            if answer is not None:
                answers.append(answer)
                if answer.last:
                    self._forget(request)
        return answers

    def _fill(self) -> None:
        """Fill the batch. First comes the tenant with the fewest windows in flight, then the one served longest ago,
        and of its requests likewise."""
        while self._suspects and self._suspects[0] not in self._requests:
            self._suspects.popleft()
        if self._suspects and not self._suspects[0].can_begin_window and not self._suspects[0].in_flight:
            self._suspects.popleft()
        candidates = list(self._suspects)[:1] or self._requests
        while self._batch.room > 0:
            able = [request for request in candidates if request.can_begin_window]
            if not able:
                return
            windows = Counter(request.message.tenant for request, _ in self._in_flight.values())
            self._last_turns = {tenant: self._last_turns.get(tenant, 0) for tenant in self.tenants()}
            request = min(
                able,
                key=lambda one: (
                    windows[one.message.tenant],
                    self._last_turns[one.message.tenant],
                    one.in_flight,
                    one.last_served,
                ),
            )
            self._last_turns[request.message.tenant] = request.last_served = next(self._turn_numbers)
            number, window = request.begin_window()
            key = next(self._keys)
            self._in_flight[key] = (request, number)
            self._batch.add(key, window)

    def _requeue_after(self, error: Exception) -> list[FromEngine]:
        """Requeue the windows of a failed step. From now on its requests run one by one, to find the one at fault."""
        together = list(dict.fromkeys(request for request, _ in self._in_flight.values()))
        for request, number in self._in_flight.values():
            request.requeue_window(number)
        self._in_flight.clear()
        self._batch = self._transcriber.batch(self._max_windows)
        if len(together) > 1:
            self._suspects.extend(request for request in together if request not in self._suspects)
            return []
        answers: list[FromEngine] = []
        for request in together:
            answers.append(failed(request.message.request_id, error))
            self._forget(request)
        return answers

    def _forget(self, request: RecordingRequest) -> None:
        self._requests.remove(request)
        for key in [key for key, (one, _) in self._in_flight.items() if one is request]:
            del self._in_flight[key]
            self._batch.drop(key)


def _shifted(segment: TranscriptSegment, seconds: float) -> TranscriptSegment:
    """A segment of a window that begins at `seconds`, with times of the recording."""
    return TranscriptSegment(
        start=segment.start + seconds,
        end=segment.end + seconds,
        token_ids=segment.token_ids,
        words=[
            TranscriptWord(start=word.start + seconds, end=word.end + seconds, token_ids=word.token_ids)
            for word in segment.words
        ],
        seek=seconds,
        temperature=segment.temperature,
        avg_logprob=segment.avg_logprob,
        compression_ratio=segment.compression_ratio,
        no_speech_prob=segment.no_speech_prob,
    )


def _samples(audio: Array) -> np.ndarray[Any, Any]:
    """Samples of a message, float32 [samples]; they share its memory."""
    if audio.dtype != "float32" or len(audio.shape) != 1 or len(audio.data) != 4 * audio.shape[0] or not audio.data:
        raise InvalidRequestError("audio must be float32 of shape [samples], at least one", param="file")
    return np.frombuffer(audio.data, dtype="<f4")
