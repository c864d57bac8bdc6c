"""Previews as small JPEGs: a pixel for each latent is little, so they are enlarged, and never over so many bytes.

Does not know who watches, nor how latents become colours (`tessera.diffusion.preview`).
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

MOST_BYTES = 12 * 1024
ENLARGED = 4
LONGEST_SIDE = 320
QUALITIES = (80, 60, 40, 20)


def sender(context: JobContext, thread: Executor) -> Callable[[Picture], None]:
    """What a request calls with each preview: encodes and sends it in `thread`, so no step waits for that."""

    def send(picture: Picture) -> None:
        try:
            context.previewed(preview_jpeg(picture))
        except (OSError, ValueError) as error:
            logger.warning("a preview of %s is not shown: %s", context.job.id, error)

    def submit(picture: Picture) -> None:
        thread.submit(send, picture)

    return submit


def preview_jpeg(picture: Picture) -> bytes:
    """A JPEG of at most `MOST_BYTES`, `ENLARGED` times as wide, its longer side at most `LONGEST_SIDE`."""
    image = Image.fromarray(picture)
    scale = min(ENLARGED, LONGEST_SIDE / max(image.size))
    image = image.resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BILINEAR
    )
    while True:
        for quality in QUALITIES:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality)
            if file.tell() <= MOST_BYTES:
                return file.getvalue()
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))
