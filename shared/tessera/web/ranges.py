"""Byte ranges of a file in an HTTP response (RFC 9110, section 14). Does not know where files are stored."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec

CHUNK_BYTES = 1 << 20
"""Bytes that are read and sent at once."""


class ByteRange(msgspec.Struct, frozen=True):
    """A contiguous part of a file: the position of its first byte, and its length in bytes."""

    start: int
    length: int


_RANGE = re.compile(r"^bytes=(?P<first>\d*)-(?P<last>\d*)$")


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The range that a `Range` header asks for (RFC 9110, section 14).

    Args:
        header: the header's value; None without the header.
        size: bytes of the whole file.

    Returns:
        The range; None for the whole file, because the header is missing, malformed, in another unit, or has several
            ranges.

    Raises:
        ValueError: the range lies outside the file, which is status 416.
    """
    found = _RANGE.match(header.replace(" ", "")) if header else None
    if found is None or not (found["first"] or found["last"]):
        return None
    if not found["first"]:
        length = min(int(found["last"]), size)
        if length == 0:
            raise ValueError(header)
        return ByteRange(size - length, length)
    first = int(found["first"])
    last = int(found["last"]) if found["last"] else size - 1
    if found["last"] and last < first:
        return None
    if first >= size:
        raise ValueError(header)
    return ByteRange(first, min(last, size - 1) - first + 1)


async def chunks(file: BinaryIO, part: ByteRange) -> AsyncIterator[bytes]:
    """The bytes of `part`, read in a thread; `file` is closed at the end."""
    with file:
        file.seek(part.start)
        left = part.length
        while left > 0:
            data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, left))
            if not data:
                return
            left -= len(data)
            yield data
