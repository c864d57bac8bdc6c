"""Reads the files of a model directory that describe its tokens: the vocabulary, stop tokens and bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import read_object_if_there, section, whole_number

BYTE_FALLBACK = re.compile(r"<0x(?P<byte>[0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The byte that each character stands for in byte-level BPE (the inverse of GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def stop_ids_of(directory: Path) -> list[int]:
    """The token ids that end an answer, from a model directory; empty when it names none."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        values = read_json(path)
        eos = values.get("eos_token_id")
        if eos is None:
            eos = section(values, "text_config", path).get("eos_token_id")
        if eos is not None:
            listed = eos if isinstance(eos, list) else [eos]
            tokens = [whole_number(token, f"`eos_token_id` of {path}", least=-1) for token in listed]
            return [token for token in tokens if token >= 0]  # some models without one say -1
    return []


def vocabulary_of(directory: Path) -> dict[str, int]:
    """The ids of all tokens of a model directory, by their spellings.

    Raises:
        ModelLoadError: the tokenizer cannot be read.
    """
    try:
        vocabulary: dict[str, int] = FastTokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    except Exception as error:  # the library raises nothing narrower
        raise ModelLoadError(f"cannot read {directory / 'tokenizer.json'}: {error}") from error
    return vocabulary


def read_json(path: Path) -> dict[str, Any]:
    """The values of a configuration file; empty when there is no such file.

    Raises:
        ModelLoadError: the file is not valid JSON, too large or too deep, or no object.
    """
    return read_object_if_there(path)
