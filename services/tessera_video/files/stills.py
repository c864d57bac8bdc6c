"""Single pictures: of a clip a thumbnail and a sheet of small frames, and images of their own. Does not know jobs."""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.diffusion.request import Frames
from tessera.wire.images import ImageFormat

THUMBNAIL_PIXELS = 512
SHEET_COLUMNS = 5
SHEET_FRAMES = 25
"""Of a longer clip as many, evenly spread from its first frame to its last."""
TILE_PIXELS = 256
JPEG_QUALITY = 88
_DESCRIPTION = 0x010E
"""EXIF's ImageDescription."""


def thumbnail_jpeg(frames: Frames) -> bytes:
    """The middle frame as a JPEG, its longer side at most `THUMBNAIL_PIXELS`."""
    return _jpeg(_small(frames[len(frames) // 2], THUMBNAIL_PIXELS))


def spritesheet_jpeg(frames: Frames) -> bytes:
    """Small frames in rows as a JPEG, in the order of reading: what a player shows above its time line.

    At most `SHEET_FRAMES` of them, `SHEET_COLUMNS` in a row, each at most `TILE_PIXELS` long; what is left is black.
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
    """An image as a file.

    Args:
        pixels: [height, width, 3], RGB.
        output_format: of the file.
        compression: quality of a JPEG or WebP, 0 to 100; None is the encoder's own.
        comment: kept in the file's EXIF, as its description.
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
