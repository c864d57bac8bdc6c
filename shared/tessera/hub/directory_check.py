"""Checks the JSON of a model directory before any library reads it, and that an index of weights names what is there.

Libraries recurse into these files and take what they find: here a file that is too deep, too large or no object is
refused with its name. Knows nothing about what the values mean.
"""

from __future__ import annotations

from pathlib import Path

from tessera.hub.weight_headers import check_index
from tessera.tokenizer.model_files import read_object

OBJECTS = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "chat_template.json",
        "model_index.json",
        "scheduler_config.json",
        "guider_config.json",
        "quantize_config.json",
        "adapter_config.json",
    }
)
"""Files that hold a JSON object, wherever they are in a model directory."""
INDEX = ".safetensors.index.json"
"""End of the name of an index of weights in several files."""


def check_directory(directory: Path) -> None:
    """Check the files of a directory and of its components' folders.

    Raises:
        ModelLoadError: one of them is damaged; names it and the reason.
    """
    for folder in (directory, *sorted(path for path in directory.iterdir() if path.is_dir())):
        for path in sorted(folder.glob("*.json")):
            if path.name in OBJECTS:
                read_object(path)
            elif path.name.endswith(INDEX):
                check_index(path)
