"""One exception for exhausted memory on every device. Does not know what is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def translated_memory_errors() -> Iterator[None]:
    """Raise the same exception for exhausted memory on a CPU as CUDA's allocator raises.

    Raises:
        torch.OutOfMemoryError: instead of the `RuntimeError` of PyTorch's CPU allocator or Python's `MemoryError`.
    """
    try:
        yield
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error) or "the host has no memory left") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from error
