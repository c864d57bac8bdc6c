"""Voice activity detection: silero's model (MIT, wheel `silero-vad`) in ONNX Runtime, and spans of speech from it.

The model gives each frame of 32 ms a probability of speech. A span begins at a frame above the threshold, and ends
where the probability has been below it for `silence_duration_ms`; then it is padded. Knows nothing about words,
transcription models or HTTP, and never imports the code of the wheel, which needs torch.
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
"""Samples per second that the model takes."""
FRAME = 512
"""Samples of a frame."""
CONTEXT = 64
"""Samples before a frame that the model takes with it."""
FRAMES_PER_CALL = 2048
"""Frames of one call, 65 s of audio, so that memory does not grow with the recording."""
STATE = 128
"""Width of the model's recurrent state."""
HYSTERESIS = 0.15
"""Distance below the threshold at which a span ends: silero's own rule."""
MIN_SPEECH_S = 0.1
"""Seconds below which a span is a click, not a word."""
MODEL = "silero_vad_16k_sequence.onnx"


class VoiceActivityModel:
    """Silero's model, loaded once. Several threads may call `probabilities` at once.

    Raises:
        StartError: the wheel that carries the model is not installed, or lacks the file.
    """

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(model_file()), options, providers=["CPUExecutionProvider"])

    def probabilities(
        self, samples: np.ndarray[Any, Any], check_stop: Callable[[], None] = lambda: None
    ) -> np.ndarray[Any, Any]:
        """Probability of speech in each frame.

        Args:
            samples: float32 [samples] at 16 kHz.
            check_stop: called once per minute of audio; an exception of it ends the work.

        Returns:
            float32 [ceil(samples / 512)].
        """
        stream = VoiceActivityStream(self._session)
        parts = range(0, samples.size, FRAME * FRAMES_PER_CALL)
        found = []
        for first in parts:
            check_stop()
            found.append(stream.probabilities(samples[first : first + FRAME * FRAMES_PER_CALL]))
        return np.concatenate(found) if found else np.zeros(0, dtype=np.float32)

    def stream(self) -> VoiceActivityStream:
        """A detector for audio that comes frame by frame."""
        return VoiceActivityStream(self._session)


class VoiceActivityStream:
    """Silero's model on one stream of audio, with its state for that stream.

    Args:
        session: ONNX Runtime's session of the model.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._state = {name: np.zeros((1, 1, STATE), dtype=np.float32) for name in ("h", "c")}
        self._before = np.zeros(CONTEXT, dtype=np.float32)

    def probability(self, frame: np.ndarray[Any, Any]) -> float:
        """Probability that the next frame of the stream is speech.

        Args:
            frame: float32 [FRAME] at `RATE`.
        """
        return float(self.probabilities(frame)[0])

    def probabilities(self, samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Probabilities of the frames of the stream's next samples; the last frame is padded with silence."""
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
    """Spans of speech in a recording.

    Args:
        probabilities: of speech in each frame; see `VoiceActivityModel.probabilities`.
        samples: length of the recording.
        detection: thresholds and padding.

    Returns:
        (First sample, the one after the last) of each span, in order, not touching each other, within the recording.
    """
    quiet_frames = max(1, round(detection.silence_duration_ms / 1000 * RATE / FRAME))
    shortest = round(MIN_SPEECH_S * RATE / FRAME)
    end_threshold = detection.threshold - min(HYSTERESIS, detection.threshold / 2)
    raw: list[tuple[int, int]] = []
    begin: int | None = None
    quiet = 0
    for frame, probability in enumerate(probabilities.tolist()):
        if begin is None:
            if probability >= detection.threshold:
                begin, quiet = frame, 0
            continue
        quiet = quiet + 1 if probability < end_threshold else 0
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
