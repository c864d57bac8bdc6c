"""What tells a good transcript from an invented one. Source: Whisper (Radford et al. 2022, section 4.5), its code."""

from __future__ import annotations

import zlib


def compression_ratio(text: str) -> float:
    """How many times smaller zlib makes `text`, in UTF-8: above 2.4 it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0
