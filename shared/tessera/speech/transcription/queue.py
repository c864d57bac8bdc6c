"""Recordings in the speech engine: which windows run together, whose turn it is, results in order.

Continuous batching over windows: those of all requests, and of one long recording, share each step; a window joins
when there is room and leaves when it ends. Who has least in work is served first, so that an hour of audio does not
keep a sentence waiting. Does not know models' insides, text or HTTP.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

import numpy as np

from tessera.engine.process import failed
from tessera.errors import InvalidRequestError
from tessera.speech.transcription.transcriber import Transcriber, WindowRequest, WindowTranscript
from tessera.wire.engine import Array, FromEngine, Transcribe, Transcript, TranscriptSegment, TranscriptWord

MIN_REST_S = 0.1
"""What is left of a recording after its windows is dropped when it is shorter: nothing can be said in it."""


class RecordingRequest:
    """A recording being transcribed.

    Args:
        message: what is asked.
        transcriber: the model; what it cannot do is refused here.

    Raises:
        InvalidRequestError: samples, cuts or options that make no sense.
    """

    def __init__(self, message: Transcribe, transcriber: Transcriber) -> None:
        self.message = message
        self.samples = _samples(message.audio)
        self.rate = transcriber.sample_rate
        self.language = message.language
        self.served = 0
        """When it was last given a place, as the queue counts."""
        self.in_work = 0
        self._longest = int(transcriber.window_s * self.rate)
        self._timestamps = message.timestamps or message.words or len(self.samples) > self._longest
        self._begun = 0
        self._told = 0
        self._heard: dict[int, WindowTranscript] = {}
        self._starts: list[int] = [0]
        self._context: list[int] = []
        self._again: deque[int] = deque()
        cuts = message.windows
        if cuts is not None:
            self._starts = [first for first, _ in cuts]
            if not cuts or any(not 0 <= first < end <= len(self.samples) for first, end in cuts):
                raise InvalidRequestError("windows must lie in the recording and not be empty", param="file")
            if max(end - first for first, end in cuts) > self._longest:
                raise InvalidRequestError(f"windows are at most {transcriber.window_s:g} s long", param="file")
        transcriber.check(self._piece(0))

    @property
    def started(self) -> bool:
        """Whether a window has been begun."""
        return self._begun > 0

    @property
    def can_begin(self) -> bool:
        """Whether a window could be begun now."""
        if self._again:
            return True
        if self._begun >= len(self._starts):
            return False
        # The first window says the language of all.
        return self._begun == 0 or self.language is not None

    def begin(self) -> tuple[int, WindowRequest]:
        """The next window and its number."""
        assert self.can_begin
        if self._again:
            number = self._again.popleft()
        else:
            number = self._begun
            self._begun += 1
        self.in_work += 1
        return number, self._piece(number)

    def give_back(self, number: int) -> None:
        """A window was begun in vain: it is begun again."""
        self.in_work -= 1
        self._again.append(number)

    def end(self, number: int, window: WindowTranscript) -> float:
        """A window was heard. Returns the seconds of audio that were."""
        self.in_work -= 1
        self._heard[number] = window
        self.language = self.language or window.language
        if self.message.windows is not None:
            return len(self._piece(number).samples) / self.rate
        self._context = window.context
        position = self._starts[number] + round(window.advance_s * self.rate)
        if (len(self.samples) - position) / self.rate >= MIN_REST_S:
            self._starts.append(position)
        return window.advance_s

    def tell(self) -> Transcript | None:
        """What was heard since the last time, in order; None while the next window is missing."""
        segments: list[TranscriptSegment] = []
        told = self._told
        while (window := self._heard.pop(self._told, None)) is not None:
            seconds = (self.message.offset + self._starts[self._told]) / self.rate
            segments += [_later(segment, seconds) for segment in window.segments]
            self._told += 1
        if told == self._told:
            return None
        last = self._told == len(self._starts)
        return Transcript(
            request_id=self.message.request_id, segments=segments, language=self.language or "", last=last
        )

    def _piece(self, number: int) -> WindowRequest:
        message = self.message
        first = self._starts[number]
        end = first + self._longest if message.windows is None else message.windows[number][1]
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
    """All recordings of an engine.

    Args:
        transcriber: the model.
        max_windows: that run together.
    """

    def __init__(self, transcriber: Transcriber, *, max_windows: int) -> None:
        self._transcriber = transcriber
        self._batch = transcriber.batch(max_windows)
        self._max_windows = max_windows
        self._requests: list[RecordingRequest] = []
        self._in_work: dict[int, tuple[RecordingRequest, int]] = {}
        self._suspects: deque[RecordingRequest] = deque()
        self._keys = count()
        self._turns = count(1)
        self.transcribed_s = 0.0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def running(self) -> int:
        """Requests that have been begun."""
        return sum(request.started for request in self._requests)

    def submit(self, message: Transcribe) -> None:
        """Queue a recording. Raises as `RecordingRequest` does."""
        self._requests.append(RecordingRequest(message, self._transcriber))

    def cancel(self, request_id: str) -> None:
        """Forget a request; its windows leave the batch now."""
        for request in [one for one in self._requests if one.message.request_id == request_id]:
            self._forget(request)

    def step(self) -> list[FromEngine]:
        """One step of all windows that have a place."""
        self._fill()
        try:
            heard = self._batch.step()
        except Exception as error:  # noqa: BLE001 - a fault of one request must not end the others
            return self._after(error)
        known = self._batch.languages()
        touched: dict[int, RecordingRequest] = {}
        for key, (request, _) in self._in_work.items():
            if request.language is None and key in known:
                request.language = known[key]
        for key, window in heard.items():
            request, number = self._in_work.pop(key)
            self.transcribed_s += request.end(number, window)
            touched[id(request)] = request
        answers: list[FromEngine] = []
        for request in touched.values():
            answer = request.tell()
            if answer is not None:
                answers.append(answer)
                if answer.last:
                    self._forget(request)
        return answers

    def _fill(self) -> None:
        """Give places to windows: first whose request has least in work, then who was served longest ago."""
        while self._suspects and self._suspects[0] not in self._requests:
            self._suspects.popleft()
        if self._suspects and not self._suspects[0].can_begin and not self._suspects[0].in_work:
            self._suspects.popleft()
        candidates = list(self._suspects)[:1] or self._requests
        while self._batch.room > 0:
            able = [request for request in candidates if request.can_begin]
            if not able:
                return
            request = min(able, key=lambda one: (one.in_work, one.served))
            request.served = next(self._turns)
            number, piece = request.begin()
            key = next(self._keys)
            self._in_work[key] = (request, number)
            self._batch.add(key, piece)

    def _after(self, error: Exception) -> list[FromEngine]:
        """A step failed: whose fault it was is found by running the requests one after another."""
        together = list(dict.fromkeys(request for request, _ in self._in_work.values()))
        for request, number in self._in_work.values():
            request.give_back(number)
        self._in_work.clear()
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
        for key in [key for key, (one, _) in self._in_work.items() if one is request]:
            del self._in_work[key]
            self._batch.drop(key)


def _later(segment: TranscriptSegment, seconds: float) -> TranscriptSegment:
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
    if audio.dtype != "float32" or len(audio.shape) != 1 or len(audio.data) != 4 * audio.shape[0] or not audio.data:
        raise InvalidRequestError("audio must be float32 of shape [samples], at least one", param="file")
    return np.frombuffer(audio.data, dtype="<f4")
