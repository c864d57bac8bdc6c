"""Voices that a codec language model knows by a recording: turns that stand before what it is to say.

A model directory may have a folder `voices` with `NAME.wav` (or .flac) and `NAME.txt`, what is said in it. The
recording becomes frames once, at the start. Does not know how turns go on.
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
MOST_S = 30.0
"""Of one recording; the model's context holds two to three minutes in all."""
SequenceEntry = int | tuple[int, ...]
"""A text token, or the codes of a frame."""


@dataclass(frozen=True)
class RecordedVoice:
    """What stands before the turns of a voice."""

    entries: list[SequenceEntry]


def load_recorded_voices(
    directory: Path, turns: SpokenTurns, codec: StreamingCodec, codebooks: int, end: tuple[int, ...]
) -> dict[str, RecordedVoice]:
    """The voices of a model directory by name, in alphabetical order; none where there is no such folder.

    Args:
        directory: of the model.
        turns: of its tokenizer.
        codec: of the model.
        codebooks: of a frame.
        end: the frame that ends a turn.

    Raises:
        ModelLoadError: a recording cannot be read, is too long or has another rate, or nobody says what is said in it.
    """
    found: dict[str, RecordedVoice] = {}
    for path in sorted((directory / FOLDER).glob("*")):
        if path.suffix not in {".wav", ".flac"}:
            continue
        said = path.with_suffix(".txt")
        try:
            text = said.read_text(encoding="utf-8").strip()
            samples_S2, rate = soundfile.read(path, dtype="float32", always_2d=True)
        except (OSError, UnicodeDecodeError, soundfile.LibsndfileError) as error:
            raise ModelLoadError(f"cannot read the voice {path.stem!r} in {path.parent}: {error}") from error
        seconds = len(samples_S2) / rate
        if rate != codec.sample_rate or not 0 < seconds <= MOST_S or not text:
            raise ModelLoadError(
                f"the voice {path} has {seconds:.1f} s at {rate} samples a second; take at most {MOST_S:.0f} s at "
                f"{codec.sample_rate}, and write what is said in it to {said.name}"
            )
        codes_FK = codec.encode(torch.from_numpy(samples_S2).mean(dim=1), codebooks)
        frames: list[SequenceEntry] = [tuple(codes) for codes in codes_FK.tolist()]
        found[path.stem] = RecordedVoice([*turns.encode(text, speaker_of(path.stem)), *frames, end])
    return found
