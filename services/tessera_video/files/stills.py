"""Encodes single pictures: a clip's thumbnail and its sprite sheet, and the images of image jobs. Knows no jobs."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.diffusion.request import Frames
from tessera.wire.images import ImageFormat

THUMBNAIL_PIXELS = 512
"""Most pixels of a thumbnail's longer side."""
SHEET_COLUMNS = 5
"""Frames per row of a sprite sheet."""
SHEET_FRAMES = 25
"""Most frames in a sprite sheet; of longer clips this many, evenly spread from the first frame to the last."""
TILE_PIXELS = 256
"""Most pixels of the longer side of a frame in a sprite sheet."""
JPEG_QUALITY = 88
"""Quality of thumbnails and sprite sheets, 0 to 100."""
_DESCRIPTION = 0x010E
"""Tag of EXIF's ImageDescription."""


def thumbnail_jpeg(frames: Frames) -> bytes:
    """Return the middle frame as a JPEG, its longer side at most `THUMBNAIL_PIXELS`."""
    return _jpeg(_small(frames[len(frames) // 2], THUMBNAIL_PIXELS))


def spritesheet_jpeg(frames: Frames) -> bytes:
    """Return a JPEG with small frames in rows, from left to right, as players show them above the time line.

    At most `SHEET_FRAMES` frames, `SHEET_COLUMNS` per row, each at most `TILE_PIXELS` long. Empty places are black.
    """
    chosen = sorted({round(place) for place in np.linspace(0, len(frames) - 1, min(len(frames), SHEET_FRAMES))})
    tiles = [_small(frames[index], TILE_PIXELS) for index in chosen]
    width, height = tiles[0].size
    columns = min(len(tiles), SHEET_COLUMNS)
    sheet = Image.new("RGB", (columns * width, math.ceil(len(tiles) / columns) * height))
    for index, tile in enumerate(tiles):
        sheet.paste(tile, (index % columns * width, index // columns * height))
    return _jpeg(sheet)


def image_file(
    pixels: npt.NDArray[np.uint8], output_format: ImageFormat, *, compression: int | None, comment: str
) -> bytes:
    """Encode an image.

    Args:
        pixels: uint8 [height, width, 3], RGB.
        output_format: format of the file.
        compression: quality of a JPEG or WebP, 0 to 100; None takes the encoder's default.
        comment: text of the EXIF field ImageDescription.
    """
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[_DESCRIPTION] = comment
    quality = {} if compression is None else {"quality": compression}
    file = io.BytesIO()
    image.save(file, output_format.upper(), exif=exif, **quality)
    return file.getvalue()


def _small(pixels: npt.NDArray[np.uint8], longest: int) -> Image.Image:
    image = Image.fromarray(pixels)
    image.thumbnail((longest, longest))
    return image


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
