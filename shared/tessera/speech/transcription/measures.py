"""Measures that tell a good transcript from an invented one (Whisper, Radford et al. 2022, section 4.5)."""

from __future__ import annotations

import zlib


def compression_ratio(text: str) -> float:
    """Bytes of `text` in UTF-8 divided by its bytes after zlib. A text above 2.4 repeats itself; an empty one has 1."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0
