"""Type and size of an image from its first bytes. Nothing is decoded.

So a process without a decoder can refuse a damaged or too large image before there is a job.
"""

from __future__ import annotations

import struct

_PNG = b"\x89PNG\r\n\x1a\n"
_NO_SIZE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length (ITU-T T.81, table B.1)."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers that begin a frame, whose header has the size."""


def image_type(data: bytes) -> str | None:
    """The content type of a PNG, JPEG or WebP image by its signature; None for anything else."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of an image from its header; None if the header is damaged or cut."""
    try:
        match image_type(data):
            case "image/png":
                size = struct.unpack_from(">II", data, 16) if data[12:16] == b"IHDR" else (0, 0)
            case "image/jpeg":
                size = _jpeg(data)
            case "image/webp":
                size = _webp(data)
            case _:
                return None
    except (struct.error, IndexError):
        return None
    width, height = size
    return (width, height) if width > 0 and height > 0 else None


def _jpeg(data: bytes) -> tuple[int, int]:
    place = 2
    while True:
        while data[place] == 0xFF:  # padding, of which an encoder may write any number
            place += 1
        marker = data[place]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 4)
            return width, height
        place += 1 if marker in _NO_SIZE else 1 + struct.unpack_from(">H", data, place + 1)[0]
        if data[place] != 0xFF:
            return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        wide, high = (int.from_bytes(data[place : place + 3], "little") for place in (24, 27))
        return (wide + 1, high + 1) if len(data) >= 30 else (0, 0)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26) if kind == b"VP8 " else (0, 0)
    return width & 0x3FFF, height & 0x3FFF
