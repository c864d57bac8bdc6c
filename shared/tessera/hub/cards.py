"""Cards: reading, writing and deriving `card.json`.

A directory made by the suite has a card with checksums. A directory that a user brings may have none: then the card is
derived from `config.json` or `model_index.json` and the headers of its safetensors files, without loading a weight.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from tessera.errors import ModelLoadError
from tessera.hub.directory_check import check_directory
from tessera.hub.encoder_files import encoder_tasks
from tessera.hub.video_geometry import video_geometry
from tessera.hub.weight_headers import safetensors_header
from tessera.tokenizer.model_files import read_as, read_object, section, text, whole
from tessera.wire.models import Card, Task

CARD_FILE = "card.json"
"""Name of the card inside a model's directory."""
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
"""Suffixes of the files that count as weights and get a checksum."""


def weight_files(directory: Path) -> list[Path]:
    """All weight files of a directory and its component folders, in a stable order."""
    return sorted(path for path in directory.rglob("*") if path.suffix in WEIGHT_SUFFIXES and path.is_file())


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(directory: Path) -> dict[str, str]:
    """Checksum of every weight file by its name inside the directory."""
    return {str(path.relative_to(directory)): sha256_of(path) for path in weight_files(directory)}


def write_card(directory: Path, card: Card) -> Card:
    """Store `card` with the checksums of the directory's weights. Returns what was stored."""
    card = msgspec.structs.replace(card, sha256=checksums(directory))
    (directory / CARD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    return card


def read_card(directory: Path) -> Card:
    """The directory's card, stored or derived.

    Raises:
        ModelLoadError: no such directory, a damaged card, or a directory that is not a model's.
    """
    if not directory.is_dir():
        raise ModelLoadError(f"there is no model directory {directory}")
    stored = directory / CARD_FILE
    if stored.is_file():
        try:
            card = read_as(stored, Card)
        except ModelLoadError as error:
            raise ModelLoadError(f"{error.message}; delete {directory} to have it made again") from error
        check_directory(directory)
        return card
    check_directory(directory)
    return _derive(directory)


def verify(directory: Path, card: Card, *, cure: str = "") -> None:
    """Compare every weight file with the card's checksums.

    Args:
        directory: the model's directory.
        card: the card that holds the checksums.
        cure: advice in the error about how to repair a file; `tessera models pull` when empty.

    Raises:
        ModelLoadError: a file is missing or differs; names the file and how to repair it.
    """
    cure = cure or f"`tessera models pull {card.id} --force` makes it again"
    for name, expected in card.sha256.items():
        path = directory / name
        if not path.is_file():
            raise ModelLoadError(f"the weight file {path} is missing; {cure}")
        if sha256_of(path) != expected:
            raise ModelLoadError(f"the weight file {path} is damaged (its checksum is not the card's); {cure}")


def safetensors_parameters(path: Path) -> int:
    """Number of parameters in a safetensors file, from its header alone.

    Raises:
        ModelLoadError: the file is truncated or its header is not a safetensors header.
    """
    return sum(entry.elements for entry in safetensors_header(path).values())


def _derive(directory: Path) -> Card:
    index, config = directory / "model_index.json", directory / "config.json"
    parameters = sum(safetensors_parameters(path) for path in weight_files(directory) if path.suffix == ".safetensors")
    created = int(directory.stat().st_mtime)
    if index.is_file():
        family = text(read_object(index), "_class_name", index)
        if family is None:
            raise ModelLoadError(f"{index} has no `_class_name`")
        geometry = video_geometry(directory, family)
        return Card(
            id=directory.name,
            family=family,
            tasks=["video"],
            source=f"directory:{directory}",
            parameters=parameters,
            licence="unknown",
            created=created,
            fps=geometry.fps,
            frames_multiple=geometry.frames_multiple,
            size_multiple=geometry.size_multiple,
            image_input=geometry.image_input,
            guidance_scale=geometry.guidance_scale,
            experts=geometry.experts,
        )
    if config.is_file():
        values = read_object(config)
        family = _family(values, config)
        language = section(values, "text_config", config) or values
        return Card(
            id=directory.name,
            family=family,
            tasks=_tasks_of(family, values),
            source=f"directory:{directory}",
            parameters=parameters,
            licence="unknown",
            created=created,
            context_length=_context_length(language, config),
            sample_rate=whole(values, "sampling_rate", config, least=1),
        )
    raise ModelLoadError(f"{directory} has neither config.json nor model_index.json: it is not a model directory")


def _context_length(values: dict[str, Any], config: Path) -> int | None:
    positions = whole(values, "max_position_embeddings", config, least=-1)
    return positions if positions and positions > 0 else None  # some models without a limit say -1


def _family(values: dict[str, Any], config: Path) -> str:
    named = values.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise ModelLoadError(f"`architectures` of {config} must be a list of texts, not {str(named)[:60]!r}")
    family = named[0] if named else text(values, "model_type", config)
    if not family:
        raise ModelLoadError(
            f"{config} has neither `architectures` nor `model_type`: it does not say what the model is"
        )
    return family


def _tasks_of(family: str, config: dict[str, Any]) -> list[Task]:
    if "vision_config" in config:
        return ["chat", "vision"]
    if (encoder := encoder_tasks(config)) is not None:
        return encoder
    if "ForCausalLM" in family:
        return ["chat", "completions", "embeddings"]
    if family.startswith("Csm"):
        return ["speech"]
    if "ForConditionalGeneration" in family or "ForCTC" in family or "ForTDT" in family:
        return ["transcription"]
    return ["speech"]
