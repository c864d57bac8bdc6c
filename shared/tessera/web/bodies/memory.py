"""Gives memory of large bodies back to the system, which glibc keeps otherwise.

glibc serves large allocations from mappings that it gives back, but each freed one raises the size from which it does
so, up to 32 MiB; after that, bodies come from heaps, of which a single small object keeps everything below it. Without
glibc nothing is done.
"""

from __future__ import annotations

import ctypes
from functools import cache

MAPPED_FROM_BYTES = 256 * 1024
"""Allocations from this size on are mappings of their own. A fixed size, so that glibc does not raise it."""
_M_MMAP_THRESHOLD = -3


@cache
def _libc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def keep_large_allocations_apart() -> None:
    """Call this once at the start of a server's process."""
    if library := _libc():
        library.mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def give_back_freed_memory() -> None:
    """Give back what is free in the heaps. Takes milliseconds; call it in a thread."""
    if library := _libc():
        library.malloc_trim(0)
