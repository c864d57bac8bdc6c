"""What a device can do to a job, as errors that say what helps. Does not know what is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tessera.errors import EngineDiedError, UnavailableError

logger = logging.getLogger(__name__)


@contextmanager
def translated_device_errors(what: str, smaller: str, on_broken_device: Callable[[], None]) -> Iterator[None]:
    """Around work on a device.

    Args:
        what: is made, for the message.
        smaller: what may be asked for instead when there is too little memory.
        on_broken_device: called when the device has failed in a way that outlasts the job (a CUDA context does not
            recover): this process is of no more use.

    Raises:
        EngineDiedError: the device failed; another worker may do better.
        UnavailableError: it has too little memory, also for this alone; so may it.
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
