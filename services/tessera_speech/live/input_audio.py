"""The sound that a client has sent and that is no message yet: decoded, made 16,000 a second, cut at turns.

Does not know events: it tells turns and gives out what is between them.
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
LONGEST_S = 300
"""Of sound that waits for its commit."""
LONGEST_TURN_S = 60
"""Of speech without a pause; then it is a message as it is."""
LEAST_S = 0.1
"""Of a message."""


class InputAudioBuffer:
    """One session's input buffer.

    Args:
        detector: makes a new ear.
    """

    def __init__(self, detector: Callable[[], SpeechDetector]) -> None:
        self._detector = detector
        self._turns: TurnDetector | None = None
        self._vad: ServerVAD | None = None
        self._held: list[Samples] = []
        self._begin = 0
        self._received = 0
        self._resampler = self._new_resampler()

    @property
    def seconds(self) -> float:
        """Of sound that waits."""
        return sum(part.size for part in self._held) / RATE

    @property
    def speaking(self) -> bool:
        """Whether a turn has begun and not ended."""
        return self._turns is not None and self._turns.speaking

    def set_turn_detection(self, vad: ServerVAD | None) -> None:
        """How turns are found from now on; None: the client says when."""
        if vad == self._vad:
            return
        self._vad = vad
        self._turns = None
        if vad is not None:
            self._turns = TurnDetector(
                self._detector(),
                threshold=vad.threshold,
                silence_ms=vad.silence_duration_ms,
                position=self._received,
            )

    def append(self, audio: str) -> Iterator[TurnEvent]:
        """More sound.

        Args:
            audio: base64 of int16, mono, `INPUT_RATE`.

        Raises:
            InvalidRequestError: no base64, half a sample, or more than may wait; nothing of it is kept.
        """
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"`audio` is not valid base64: {error}", param="audio") from error
        if len(data) % 2:
            raise InvalidRequestError(
                f"`audio` has {len(data)} bytes, an odd number: samples have two bytes", param="audio"
            )
        if self.seconds + len(data) / 2 / INPUT_RATE > LONGEST_S:
            raise InvalidRequestError(
                f"more than {LONGEST_S} s of sound would wait; commit or clear what is there",
                param="audio",
                code="input_audio_buffer_full",
            )
        return self._hear(data)

    def take(self, until: int | None = None) -> Samples:
        """Give out the sound up to a place (all of it), and forget it.

        Raises:
            InvalidRequestError: there is too little for a message.
        """
        if until is None:
            self._keep(self._resampler.resample(None))
            self._resampler = self._new_resampler()
        whole = np.concatenate([*self._held, np.zeros(0, dtype=np.float32)])
        count = whole.size if until is None else min(whole.size, max(0, until - self._begin))
        if count < LEAST_S * RATE:
            raise InvalidRequestError(
                f"the input audio buffer has {1000 * count / RATE:.0f} ms of sound; a message needs "
                f"{1000 * LEAST_S:.0f} ms",
                code="input_audio_buffer_commit_empty",
            )
        self._held = [whole[count:]] if count < whole.size else []
        self._begin += count
        if self._turns is not None and until is None:
            self._turns.reset()
        return whole[:count]

    def clear(self) -> None:
        """Forget what waits."""
        self._begin += sum(part.size for part in self._held)
        self._held = []
        self._resampler = self._new_resampler()
        if self._turns is not None:
            self._turns.reset()

    def end_turn(self) -> TurnEvent:
        """A turn that has become too long ends here; who goes on speaking begins another."""
        assert self._turns is not None, "only a turn that was heard can end"
        self._turns.reset()
        return TurnEvent("stopped", self._received)

    def trim_to_turn(self, place: int) -> int:
        """Forget what is before a turn and its padding. Returns where what is left begins."""
        padding = 0 if self._vad is None else self._vad.prefix_padding_ms * RATE // 1000
        self._forget(place - padding)
        return self._begin

    def _hear(self, data: bytes) -> Iterator[TurnEvent]:
        # Small steps, so that a turn is told before the sound after it is taken in.
        step = INPUT_RATE // 5 * 2
        for begin in range(0, len(data), step):
            samples = np.frombuffer(data[begin : begin + step], dtype="<i2")
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None, :], format="s16", layout="mono")
            frame.sample_rate, frame.time_base = INPUT_RATE, Fraction(1, INPUT_RATE)
            fresh = self._keep(self._resampler.resample(frame))
            if self._turns is not None:
                yield from self._turns.feed(fresh)
                if not self._turns.speaking:
                    padding = 0 if self._vad is None else self._vad.prefix_padding_ms * RATE // 1000
                    self._forget(self._received - padding - RATE // 5)

    def _keep(self, frames: list[Any]) -> Samples:
        parts = [frame.to_ndarray()[0] for frame in frames]
        fresh = np.concatenate([*parts, np.zeros(0, dtype=np.float32)]).astype(np.float32)
        if fresh.size:
            self._held.append(fresh)
            self._received += fresh.size
        return fresh

    def _forget(self, before: int) -> None:
        """Nobody spoke before this place."""
        while self._held and self._begin < before:
            first = self._held.pop(0)
            if self._begin + first.size > before:
                self._held.insert(0, first[before - self._begin :])
                self._begin = before
            else:
                self._begin += first.size

    @staticmethod
    def _new_resampler() -> Any:
        return av.AudioResampler(format="flt", layout="mono", rate=RATE)
