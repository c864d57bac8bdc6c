"""Makes the documented example of `tessera.toml` from the sections' types, defaults and descriptions.

Reads no settings.
"""

from __future__ import annotations

import textwrap
from typing import get_type_hints

import msgspec

from tessera.settings.section import Section
from tessera.settings.tree import Settings

WIDTH = 120
"""Most characters of a line of description."""


def example() -> str:
    """Every section and key with its description and its default, as TOML."""
    lines = [
        "# tessera.toml: every key with its default. Copy what you change; leave out the rest.",
        "# Any key can also be set by environment: TESSERA_GATEWAY__PORT=9000 is [gateway] port = 9000.",
        "# This file is made by `tessera config`.",
    ]
    for section in msgspec.structs.fields(Settings):
        lines += _section_lines(section.name, section.type, section.default)
    return "\n".join(lines) + "\n"


def _section_lines(name: str, kind: type[Section], default: Section) -> list[str]:
    lines = ["", f"# {(kind.__doc__ or '').splitlines()[0]}", f"[{name}]"]
    nested: list[str] = []
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        value = getattr(default, field.name)
        if isinstance(value, Section):
            nested += _section_lines(f"{name}.{field.name}", type(value), value)
            continue
        meta = [part.description for part in getattr(hints[field.name], "__metadata__", ()) if part.description]
        about = textwrap.wrap(meta[-1], WIDTH, initial_indent="# ", subsequent_indent="# ")
        if isinstance(value, dict):
            entries = [f"{_text(key)} = {_text(entry)}" for key, entry in value.items()]
            nested += ["", *about, f"[{name}.{field.name}]", *entries]
            continue
        lines += about
        lines.append(f"{field.name} = {msgspec.json.encode(value).decode()}")
    return lines + nested


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()
