"""When somebody speaks: turns by any detector, and by loudness; sound that waits for its commit."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tessera.errors import InvalidRequestError
from tessera.wire.realtime import ServerVAD
from tessera_speech.live.input_audio import INPUT_RATE, MAX_BUFFERED_S, InputAudioBuffer
from tessera_speech.live.turn_detection import TurnDetector
from tessera_speech.recordings.detectors import FRAME, RATE, EnergyDetector


class Told:
    """A detector that says what it is told."""

    def __init__(self, *probabilities: float) -> None:
        self.left = list(probabilities)

    def probability(self, frame: np.ndarray[Any, Any]) -> float:
        assert frame.shape == (FRAME,)
        return self.left.pop(0) if self.left else 0.0


def turns_of(detector: Any, samples: np.ndarray[Any, Any], **options: Any) -> list[tuple[str, int]]:
    turns = TurnDetector(detector, **{"threshold": 0.5, "silence_ms": 96, **options})
    found = []
    for begin in range(0, samples.size, 777):
        found += [(turn.kind, turn.at) for turn in turns.feed(samples[begin : begin + 777].astype(np.float32))]
    return found


def frames(count: int) -> np.ndarray[Any, Any]:
    return np.zeros(count * FRAME, dtype=np.float32)


def test_a_turn_needs_three_frames_and_ends_after_silence() -> None:
    told = [0.9, 0.9, 0.0, 0.9, 0.9, 0.9, 0.9, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0]
    assert turns_of(Told(*told), frames(14)) == [("started", 3 * FRAME), ("stopped", 13 * FRAME)]


def test_a_doubtful_frame_keeps_a_turn_and_begins_none() -> None:
    told = [0.45] * 5 + [0.6] * 3 + [0.4] * 8 + [0.3] * 3
    assert turns_of(Told(*told), frames(19)) == [("started", 5 * FRAME), ("stopped", 19 * FRAME)]


def noise(seconds: float, level_db: float, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, 10 ** (level_db / 20), int(seconds * RATE))


@pytest.mark.parametrize("floor_db", [-120, -60, -45])
@pytest.mark.parametrize("loud_db", [-28, -12])
def test_loudness_tells_speech_from_what_was_there(floor_db: int, loud_db: int) -> None:
    sound = noise(7.0, floor_db)
    sound[2 * RATE : 4 * RATE] += noise(2.0, loud_db, seed=1)
    found = turns_of(EnergyDetector(), sound, silence_ms=500)
    assert [kind for kind, _ in found] == ["started", "stopped"]
    assert found[0][1] / RATE == pytest.approx(2.0, abs=0.1)
    assert found[1][1] / RATE == pytest.approx(4.5, abs=0.1)


@pytest.mark.parametrize("level_db", [-120, -60, -48])
def test_even_noise_is_no_speech(level_db: int) -> None:
    assert turns_of(EnergyDetector(), noise(10.0, level_db)) == []


# ---- the buffer


def encoded(samples: np.ndarray[Any, Any]) -> str:
    return base64.b64encode((samples * 32767).astype("<i2").tobytes()).decode()


def hum(seconds: float) -> np.ndarray[Any, Any]:
    return 0.3 * np.sin(2 * np.pi * 200 * np.arange(int(seconds * INPUT_RATE)) / INPUT_RATE)


def test_what_is_taken_is_what_was_appended_at_another_rate() -> None:
    buffer = InputAudioBuffer(EnergyDetector)
    for piece in np.array_split(hum(1.0), 23):
        assert list(buffer.append(encoded(piece))) == []
    samples = buffer.take()
    assert samples.size == pytest.approx(RATE, abs=2)
    expected = 0.3 * np.sin(2 * np.pi * 200 * np.arange(samples.size) / RATE)
    assert np.abs(samples - expected)[200:-200].max() < 0.01
    assert buffer.seconds == 0


def test_while_nobody_speaks_nothing_grows() -> None:
    buffer = InputAudioBuffer(EnergyDetector)
    buffer.set_turn_detection(ServerVAD())
    for _ in range(60):
        assert list(buffer.append(encoded(np.zeros(INPUT_RATE)))) == []
        assert buffer.seconds <= 1.0


def test_a_turn_is_taken_with_its_padding_and_what_follows_stays() -> None:
    buffer = InputAudioBuffer(EnergyDetector)
    buffer.set_turn_detection(ServerVAD(prefix_padding_ms=200, silence_duration_ms=300))
    silence = np.zeros(INPUT_RATE)
    turns = []
    for turn in buffer.append(encoded(np.concatenate([silence, hum(1.0), silence, hum(0.5)]))):
        turns.append(turn.kind)
        if turn.kind == "started":
            begin = buffer.trim_to_turn(turn.at)
            assert begin / RATE in (pytest.approx(0.8, abs=0.1), pytest.approx(2.8, abs=0.1))
        else:
            assert buffer.take(turn.at).size / RATE == pytest.approx(1.5, abs=0.1)
    assert turns == ["started", "stopped", "started"]
    assert buffer.speaking


def test_more_than_may_wait_is_refused_whole() -> None:
    buffer = InputAudioBuffer(EnergyDetector)
    minute = encoded(np.zeros(60 * INPUT_RATE))
    for _ in range(MAX_BUFFERED_S // 60):
        list(buffer.append(minute))
    before = buffer.seconds
    with pytest.raises(InvalidRequestError, match="commit or clear") as caught:
        buffer.append(encoded(np.zeros(4800)))
    assert caught.value.param == "audio"
    assert buffer.seconds == before
    buffer.clear()
    assert buffer.seconds == 0
    list(buffer.append(minute))


def test_a_moment_of_sound_is_no_message() -> None:
    buffer = InputAudioBuffer(EnergyDetector)
    list(buffer.append(encoded(np.zeros(int(0.05 * INPUT_RATE)))))
    with pytest.raises(InvalidRequestError, match="50 ms"):
        buffer.take()
    list(buffer.append(encoded(np.zeros(int(0.1 * INPUT_RATE)))))
    assert buffer.take().size / RATE == pytest.approx(0.15, abs=0.01), "it is kept until there is enough"
