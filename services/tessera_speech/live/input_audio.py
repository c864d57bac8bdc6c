"""The input audio buffer: audio of a client that is not a message yet, decoded, resampled to 16 kHz, cut at turns.

Knows nothing about events of the protocol: it yields turns and returns the audio of messages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np

from tessera.errors import InvalidRequestError
from tessera.wire.realtime import ServerVAD
from tessera_speech.live.turn_detection import TurnDetector, TurnEvent
from tessera_speech.recordings.detectors import RATE, Samples, SpeechDetector

INPUT_RATE = 24_000
"""Samples per second of the audio that clients send."""
MAX_BUFFERED_S = 300
"""Most seconds of audio that wait for a commit."""
MAX_TURN_S = 60
"""Most seconds of a turn without a pause; then it ends as it is."""
MIN_MESSAGE_S = 0.1
"""Least seconds of a message."""


class InputAudioBuffer:
    """The input audio buffer of one session.

    Args:
        detector: makes a detector of speech for one stream.
    """

    def __init__(self, detector: Callable[[], SpeechDetector]) -> None:
        self._detector = detector
        self._turn_detector: TurnDetector | None = None
        self._vad: ServerVAD | None = None
        self._chunks: list[Samples] = []
        self._begin = 0
        self._received = 0
        self._resampler = self._new_resampler()

    @property
    def seconds(self) -> float:
        """Seconds of audio that wait."""
        return sum(part.size for part in self._chunks) / RATE

    @property
    def speaking(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self._turn_detector is not None and self._turn_detector.speaking

    def set_turn_detection(self, vad: ServerVAD | None) -> None:
        """Set how turns are found from now on; with None the client commits them itself."""
        if vad == self._vad:
            return
        self._vad = vad
        self._turn_detector = None
        if vad is not None:
            self._turn_detector = TurnDetector(
                self._detector(),
                threshold=vad.threshold,
                silence_ms=vad.silence_duration_ms,
                position=self._received,
            )

    def append(self, audio: str) -> Iterator[TurnEvent]:
        """Append audio. Yields turns as they begin and end; the audio is processed as the result is iterated.

        Args:
            audio: base64 of int16 samples, mono, at `INPUT_RATE`.

        Raises:
            InvalidRequestError: not base64, half a sample, or more than may wait; nothing is appended then.
        """
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"`audio` is not valid base64: {error}", param="audio") from error
        if len(data) % 2:
            raise InvalidRequestError(
                f"`audio` has {len(data)} bytes, an odd number: samples have two bytes", param="audio"
            )
        if self.seconds + len(data) / 2 / INPUT_RATE > MAX_BUFFERED_S:
            raise InvalidRequestError(
                f"more than {MAX_BUFFERED_S} s of sound would wait; commit or clear what is there",
                param="audio",
                code="input_audio_buffer_full",
            )
        return self._process(data)

    def take(self, until: int | None = None) -> Samples:
        """Remove the audio up to the sample `until` of the session, or all of it, and return it.

        Raises:
            InvalidRequestError: there is too little for a message.
        """
        if until is None:
            self._buffer(self._resampler.resample(None))
            self._resampler = self._new_resampler()
        samples = np.concatenate([*self._chunks, np.zeros(0, dtype=np.float32)])
        count = samples.size if until is None else min(samples.size, max(0, until - self._begin))
        if count < MIN_MESSAGE_S * RATE:
            raise InvalidRequestError(
                f"the input audio buffer has {1000 * count / RATE:.0f} ms of sound; a message needs "
                f"{1000 * MIN_MESSAGE_S:.0f} ms",
                code="input_audio_buffer_commit_empty",
            )
        self._chunks = [samples[count:]] if count < samples.size else []
        self._begin += count
        if self._turn_detector is not None and until is None:
            self._turn_detector.reset()
        return samples[:count]

    def clear(self) -> None:
        """Drop all audio that waits."""
        self._begin += sum(part.size for part in self._chunks)
        self._chunks = []
        self._resampler = self._new_resampler()
        if self._turn_detector is not None:
            self._turn_detector.reset()

    def end_turn(self) -> TurnEvent:
        """End a turn that has become too long; further speech begins another one."""
        assert self._turn_detector is not None, "only a turn that was detected can end"
        self._turn_detector.reset()
        return TurnEvent("stopped", self._received)

    def trim_to_turn(self, place: int) -> int:
        """Drop the audio before a turn and its padding. Returns the first sample that is left."""
        padding = 0 if self._vad is None else self._vad.prefix_padding_ms * RATE // 1000
        self._drop_before(place - padding)
        return self._begin

    def _process(self, data: bytes) -> Iterator[TurnEvent]:
        # Small steps, so that an event is yielded before the audio after it is processed.
        step = INPUT_RATE // 5 * 2
        for begin in range(0, len(data), step):
            samples = np.frombuffer(data[begin : begin + step], dtype="<i2")
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None, :], format="s16", layout="mono")
            frame.sample_rate, frame.time_base = INPUT_RATE, Fraction(1, INPUT_RATE)
            fresh = self._buffer(self._resampler.resample(frame))
            if self._turn_detector is not None:
                yield from self._turn_detector.feed(fresh)
                if not self._turn_detector.speaking:
                    padding = 0 if self._vad is None else self._vad.prefix_padding_ms * RATE // 1000
                    self._drop_before(self._received - padding - RATE // 5)

    def _buffer(self, frames: list[Any]) -> Samples:
        parts = [frame.to_ndarray()[0] for frame in frames]
        fresh = np.concatenate([*parts, np.zeros(0, dtype=np.float32)]).astype(np.float32)
        if fresh.size:
            self._chunks.append(fresh)
            self._received += fresh.size
        return fresh

    def _drop_before(self, before: int) -> None:
        """Drop the audio before a sample: nobody spoke in it."""
        while self._chunks and self._begin < before:
            first = self._chunks.pop(0)
            if self._begin + first.size > before:
                self._chunks.insert(0, first[before - self._begin :])
                self._begin = before
            else:
                self._begin += first.size

    @staticmethod
    def _new_resampler() -> Any:
        return av.AudioResampler(format="flt", layout="mono", rate=RATE)
