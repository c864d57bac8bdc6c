"""Reads the files of a model directory that describe its tokens: vocabulary, stop tokens, bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ModelLoadError

BYTE_FALLBACK = re.compile(r"<0x(?P<byte>[0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The character by which byte-level BPE writes each byte (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def stop_ids_of(directory: Path) -> list[int]:
    """The ids that end an answer, as a model directory names them."""
    for name in ("generation_config.json", "config.json"):
        values = read_json(directory / name)
        eos = values.get("eos_token_id")
        if eos is None:
            eos = (values.get("text_config") or {}).get("eos_token_id")
        if eos is not None:
            return eos if isinstance(eos, list) else [eos]
    return []


def vocabulary_of(directory: Path) -> dict[str, int]:
    """All tokens of a model directory with their ids.

    Raises:
        ModelLoadError: its tokenizer cannot be read.
    """
    try:
        found: dict[str, int] = FastTokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"cannot read {directory / 'tokenizer.json'}: {error}") from error
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A configuration file's values; none when there is no such file."""
    if not path.is_file():
        return {}
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    return values
