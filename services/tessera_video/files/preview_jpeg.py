"""Encodes previews as small JPEGs: enlarged, because they have one pixel per latent, and limited in bytes.

Does not know who reads them, and not how latents become colours (`tessera.diffusion.preview` does).
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from PIL import Image

from tessera.diffusion.request import Picture
from tessera.jobs.worker.runner import JobContext

logger = logging.getLogger(__name__)

MAX_BYTES = 12 * 1024
"""Most bytes of a preview."""
ENLARGEMENT = 4
"""Pixels of a preview per side of a latent, if `LONGEST_SIDE` allows it."""
LONGEST_SIDE = 320
"""Most pixels of a preview's longer side."""
QUALITIES = (80, 60, 40, 20)
"""JPEG qualities that are tried in turn until the preview is small enough."""


def sender(context: JobContext, thread: Executor) -> Callable[[Picture], None]:
    """Return the callback that encodes and sends a request's previews in `thread`, so that no step waits for it."""

    def send(picture: Picture) -> None:
        try:
            context.previewed(preview_jpeg(picture))
        except (OSError, ValueError) as error:
            logger.warning("a preview of %s is not shown: %s", context.job.id, error)

    def submit(picture: Picture) -> None:
        thread.submit(send, picture)

    return submit


def preview_jpeg(picture: Picture) -> bytes:
    """Return a JPEG of at most `MAX_BYTES`, `ENLARGEMENT` times as wide, its longer side at most `LONGEST_SIDE`."""
    image = Image.fromarray(picture)
    scale = min(ENLARGEMENT, LONGEST_SIDE / max(image.size))
    image = image.resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BILINEAR
    )
    while True:
        for quality in QUALITIES:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality)
            if file.tell() <= MAX_BYTES:
                return file.getvalue()
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))
