"""Voices of a codec language model that a recording defines: the recording is a turn before the text to synthesize.

A model directory may have a folder `voices` with `NAME.wav` (or .flac) and its transcript `NAME.txt`. The recording is
encoded into frames once, at the start. Knows nothing about the turns after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import soundfile
import torch

from tessera.errors import ModelLoadError
from tessera.speech.codec.mimi import StreamingCodec
from tessera.tokenizer.spoken_turns import SpokenTurns, speaker_of

FOLDER = "voices"
MAX_RECORDING_S = 30.0
"""Most seconds of one recording; the context of the model holds two to three minutes in all."""
SequenceEntry = int | tuple[int, ...]
"""A text token, or the codes of a frame."""


@dataclass(frozen=True)
class RecordedVoice:
    """The entries of a sequence before the turns of a voice."""

    entries: list[SequenceEntry]


def load_recorded_voices(
    directory: Path, turns: SpokenTurns, codec: StreamingCodec, codebooks: int, end: tuple[int, ...]
) -> dict[str, RecordedVoice]:
    """The voices of a model directory by name, in alphabetical order; none where there is no such folder.

    Args:
        directory: directory of the model.
        turns: its tokenizer.
        codec: its codec.
        codebooks: codebooks of a frame.
        end: the frame that ends a turn.

    Raises:
        ModelLoadError: a recording cannot be read, is too long, has another rate or has no transcript.
    """
    found: dict[str, RecordedVoice] = {}
    for path in sorted((directory / FOLDER).glob("*")):
        if path.suffix not in {".wav", ".flac"}:
            continue
        transcript = path.with_suffix(".txt")
        try:
            text = transcript.read_text(encoding="utf-8").strip()
            samples_S2, rate = soundfile.read(path, dtype="float32", always_2d=True)
        except (OSError, UnicodeDecodeError, soundfile.LibsndfileError) as error:
            raise ModelLoadError(f"cannot read the voice {path.stem!r} in {path.parent}: {error}") from error
        seconds = len(samples_S2) / rate
        if rate != codec.sample_rate or not 0 < seconds <= MAX_RECORDING_S or not text:
            raise ModelLoadError(
                f"the voice {path} has {seconds:.1f} s at {rate} samples a second; take at most "
                f"{MAX_RECORDING_S:.0f} s at {codec.sample_rate}, and write what is said in it to {transcript.name}"
            )
        codes_FK = codec.encode(torch.from_numpy(samples_S2).mean(dim=1), codebooks)
        frames: list[SequenceEntry] = [tuple(codes) for codes in codes_FK.tolist()]
        found[path.stem] = RecordedVoice([*turns.encode(text, speaker_of(path.stem)), *frames, end])
    return found
