"""Where somebody speaks in a recording: silero's model (MIT, wheel `silero-vad`) by ONNX Runtime, then spans.

The model gives each 32 ms a probability of speech. A span begins at a frame above the threshold and ends where the
probability has been below it for `silence_duration_ms`; then it is padded. Does not know words, models of speech or
HTTP, and never imports the wheel's own code, which is torch's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tessera.errors import StartError
from tessera.wire.audio import VADConfig

RATE = 16_000
FRAME = 512
"""Samples that one probability stands for."""
CONTEXT = 64
"""Samples in front of a frame that the model sees with it."""
FRAMES_AT_ONCE = 2048
"""One call's frames: 65 s of sound, so that memory does not grow with the recording."""
STATE = 128
HYSTERESIS = 0.15
"""A span goes on until the probability is this much below the threshold: silero's own rule."""
SHORTEST_S = 0.1
"""What is shorter is a click, not a word."""
MODEL = "silero_vad_16k_sequence.onnx"


class VoiceActivityModel:
    """Silero's model, loaded once. `probabilities` may be called from several threads at once.

    Raises:
        StartError: the wheel that carries the model is not installed, or lacks the file.
    """

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(model_file()), options, providers=["CPUExecutionProvider"])

    def probabilities(
        self, samples: np.ndarray[Any, Any], look: Callable[[], None] = lambda: None
    ) -> np.ndarray[Any, Any]:
        """Probability of speech in each frame.

        Args:
            samples: float32 of shape [samples] at 16 kHz.
            look: called every minute of sound; what it raises ends the work.

        Returns:
            float32 of shape [ceil(samples / 512)].
        """
        ear = VoiceActivityStream(self._session)
        parts = range(0, samples.size, FRAME * FRAMES_AT_ONCE)
        found = []
        for first in parts:
            look()
            found.append(ear.probabilities(samples[first : first + FRAME * FRAMES_AT_ONCE]))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)

    def stream(self) -> VoiceActivityStream:
        """For sound that comes in pieces."""
        return VoiceActivityStream(self._session)


class VoiceActivityStream:
    """Silero's model on one stream of sound, with what it remembers of it.

    Args:
        session: of the model.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._state = {name: np.zeros((1, 1, STATE), dtype=np.float32) for name in ("h", "c")}
        self._before = np.zeros(CONTEXT, dtype=np.float32)

    def probability(self, frame: np.ndarray[Any, Any]) -> float:
        """How likely the stream's next frame is speech.

        Args:
            frame: float32 of shape [FRAME] at `RATE`.
        """
        return float(self.probabilities(frame)[0])

    def probabilities(self, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The same of all frames of the stream's next samples; a last one that is short is filled up by silence."""
        frames = -(-samples.size // FRAME)
        padded = np.zeros(CONTEXT + frames * FRAME, dtype=np.float32)
        padded[:CONTEXT], padded[CONTEXT : CONTEXT + samples.size] = self._before, samples
        seen = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
        given = {"input": np.ascontiguousarray(seen), **self._state}
        speech, self._state["h"], self._state["c"] = self._session.run(None, given)
        self._before = padded[-CONTEXT:]
        probabilities: np.ndarray[Any, Any] = speech
        return probabilities


def model_file() -> Path:
    """Path of silero's model in the wheel that carries it.

    Raises:
        StartError: it is not there.
    """
    package = importlib.util.find_spec("silero_vad")
    for place in (package.submodule_search_locations or []) if package is not None else []:
        path = Path(place) / "data" / MODEL
        if path.is_file():
            return path
    raise StartError(
        f"{MODEL} is not installed: `pip install silero-vad`, or set `speech.voice_detection = false` to do without"
    )


def speech_spans(probabilities: np.ndarray[Any, Any], samples: int, detection: VADConfig) -> list[tuple[int, int]]:
    """Where speech is.

    Args:
        probabilities: see `VoiceActivityModel.probabilities`.
        samples: length of the recording.
        detection: thresholds and padding.

    Returns:
        First sample and the one behind the last of each span: in order, apart from each other, within the recording.
    """
    quiet_frames = max(1, round(detection.silence_duration_ms / 1000 * RATE / FRAME))
    shortest = round(SHORTEST_S * RATE / FRAME)
    leave = detection.threshold - min(HYSTERESIS, detection.threshold / 2)
    raw: list[tuple[int, int]] = []
    begin: int | None = None
    quiet = 0
    for frame, probability in enumerate(probabilities.tolist()):
        if begin is None:
            if probability >= detection.threshold:
                begin, quiet = frame, 0
            continue
        quiet = quiet + 1 if probability < leave else 0
        if quiet >= quiet_frames:
            raw.append((begin, frame + 1 - quiet))
            begin = None
    if begin is not None:
        raw.append((begin, len(probabilities) - quiet))
    padding = round(detection.prefix_padding_ms / 1000 * RATE)
    found: list[tuple[int, int]] = []
    for first, end in raw:
        if end - first < shortest:
            continue
        start, stop = max(0, first * FRAME - padding), min(samples, end * FRAME + padding)
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
