"""Directories of CTranslate2 (`faster-whisper` uses them), converted once, and again when they have changed.

Torch-free: the conversion runs in a process of its own (`tessera.models.ctranslate2`), because it needs NumPy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.hub.cards import read_card
from tessera.hub.conversion_process import run_conversion
from tessera.wire.models import Card

MODEL_FILE = "model.bin"
"""File by which such a directory is recognized, if it has none of Transformers'."""


def is_ctranslate2(directory: Path) -> bool:
    """Whether a directory has a model of CTranslate2 and none of Transformers."""
    return (directory / MODEL_FILE).is_file() and not any(directory.glob("*.safetensors"))


def folder_of(source: Path) -> str:
    """The folder of a model's conversion in the models directory; it depends on path, size and modification time."""
    status = (source / MODEL_FILE).stat()
    known = f"{source.absolute()}\n{status.st_size}\n{status.st_mtime_ns}"
    return f"{source.name}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def convert(source: Path, directory: Path, report: Callable[[str], None]) -> Card:
    """Fill `directory` with the model of `source`.

    Raises:
        ModelLoadError: a file is missing or damaged, or it is no Whisper.
    """
    report(f"converting {source.name} from CTranslate2's format, once")
    run_conversion("tessera.models.ctranslate2", source, directory)
    return msgspec.structs.replace(
        read_card(directory),
        id=source.name,
        source=f"file:{source}",
        created=int((source / MODEL_FILE).stat().st_mtime),
    )
