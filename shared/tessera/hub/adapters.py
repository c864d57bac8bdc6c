"""Parses the setting `video.adapters`: entries `name=path`, or `name@2=path` for a model's second expert.

Torch-free. Does not open the files (`tessera.diffusion.loading.lora_files` does).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tessera.errors import SettingsError

_ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63})(@(?P<expert>[12]))?=(?P<path>.+)$")


def adapter_files(entries: Sequence[str]) -> dict[str, dict[int, Path]]:
    """Return the files of each adapter by its name, and for each name by expert: 0 for the first, 1 for the second.

    Raises:
        SettingsError: an entry does not have that form, or an adapter is listed twice.
    """
    files: dict[str, dict[int, Path]] = {}
    for entry in entries:
        match = _ENTRY.match(entry)
        if match is None:
            raise SettingsError(
                f"`video.adapters` has the entry {entry!r}; write name=path of a safetensors file, the name of "
                f"letters, digits, dots, dashes and underscores, or name@2=path for a model's second expert"
            )
        expert = int(match["expert"] or 1) - 1
        own = files.setdefault(match["name"], {})
        if expert in own:
            raise SettingsError(f"`video.adapters` has {match['name']!r} twice; give each adapter a name of its own")
        own[expert] = Path(match["path"]).expanduser()
    return files
