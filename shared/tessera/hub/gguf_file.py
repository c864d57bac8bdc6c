"""Converts a GGUF file to a directory of safetensors once, and again when the file has changed.

Torch-free: the conversion runs in a process of its own (`tessera.models.gguf_conversion`), because it needs torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub import huggingface
from tessera.hub.cards import read_card
from tessera.hub.conversion_process import run_conversion
from tessera.hub.gguf_header import check_gguf
from tessera.wire.models import Card

SUFFIX = ".gguf"
"""Suffix by which a GGUF file is recognized."""


def is_gguf(model: str) -> bool:
    """Whether a setting names a GGUF file on this machine."""
    return model.lower().endswith(SUFFIX) and not model.startswith(huggingface.PREFIX)


def folder_of(file: Path) -> str:
    """Return the folder of a file's conversion in the models directory; it depends on path, size and modification time.

    Raises:
        ModelLoadError: there is no such file.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise ModelLoadError(f"there is no GGUF file {file}: {error.strerror}") from error
    known = f"{file.absolute()}\n{status.st_size}\n{status.st_mtime_ns}"
    return f"{file.stem}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def convert(file: Path, directory: Path, report: Callable[[str], None]) -> Card:
    """Fill `directory` with the model in `file`.

    Raises:
        ModelLoadError: the file is no GGUF file, is damaged, or has an architecture that Transformers does not read.
    """
    check_gguf(file)
    report(f"converting {file.name} ({file.stat().st_size / 1e6:,.0f} MB), once")
    run_conversion("tessera.models.gguf_conversion", file, directory)
    card = read_card(directory)
    return msgspec.structs.replace(
        card,
        id=file.stem,
        source=f"file:{file}",
        scheme="gguf dequantized to float16",
        created=int(file.stat().st_mtime),
    )
