"""What an allocator says when it has nothing left, in one way for every device. Does not know what is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def translated_memory_errors() -> Iterator[None]:
    """Around work: a CPU's allocator that has nothing left says so as CUDA's does.

    Raises:
        torch.OutOfMemoryError: in place of a plain `RuntimeError`, or of Python's own `MemoryError`.
    """
    try:
        yield
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error) or "the host has no memory left") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from error
