"""Translates device failures into errors that say what helps. Does not know what is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tessera.errors import EngineDiedError, UnavailableError

logger = logging.getLogger(__name__)


@contextmanager
def translated_device_errors(what: str, smaller: str, on_broken_device: Callable[[], None]) -> Iterator[None]:
    """Translate exceptions of a device while the context is open.

    Args:
        what: name of the result, for the message.
        smaller: smaller request that the message advises when memory is short.
        on_broken_device: called when the device has failed for good (a CUDA context does not recover), so that this
            process is of no further use.

    Raises:
        EngineDiedError: the device failed; another worker may succeed.
        UnavailableError: the device has too little memory even for this request alone; another worker may have more.
    """
    try:
        yield
    except torch.AcceleratorError as error:
        logger.exception("the device has failed")
        on_broken_device()
        raise EngineDiedError(f"the device failed while it worked on {what}") from error
    except torch.OutOfMemoryError as error:
        raise UnavailableError(
            f"there is too little memory on the device for {what}; ask for {smaller}", code="out_of_memory"
        ) from error
