"""Decodes images from data URLs, under limits that are checked before any pixel is decoded.

Knows nothing about models. Remote addresses are refused: a server that fetches any address can be used to attack its
own network.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are decoded, by Pillow's names."""
MIN_SIDE = 2
"""Shortest side of an image, in pixels."""
MAX_RATIO = 200
"""Largest ratio of the longest side to the shortest. Beyond it, the resize of a processor makes huge images."""
_DATA_URL = re.compile(r"^data:(?P<kind>[\w.+-]+/[\w.+-]+);base64,(?P<data>[A-Za-z0-9+/=\s]*)$")


@dataclass(frozen=True)
class ImageLimits:
    """What the service's settings allow.

    Attributes:
        count: most images of a request.
        bytes: most bytes of an image's file.
        pixels: most pixels of an image.
        total_pixels: most pixels of all images of a request.
        exact_pixels: pixels above which an image is reduced while it is decoded.
    """

    count: int
    bytes: int
    pixels: int
    total_pixels: int = 1 << 62
    exact_pixels: int = 1 << 62


def decode_data_url(url: str, limits: ImageLimits, *, param: str) -> Image.Image:
    """Decode the image in a data URL to RGB. Raises what `open_data_url` and `pixels_of` raise."""
    return pixels_of(open_data_url(url, limits, param=param), limits, param=param)


def check_total(images: Sequence[Image.Image], limits: ImageLimits, *, param: str) -> None:
    """Check the pixels of all images of a request, before any is decoded.

    Raises:
        PayloadTooLargeError: they are more than allowed.
    """
    total = sum(image.width * image.height for image in images)
    if total > limits.total_pixels:
        raise PayloadTooLargeError(
            f"`{param}`: the {len(images)} images have {total} pixels together; at most {limits.total_pixels} are "
            "allowed in one request: send fewer or smaller ones",
            param=param,
        )


def open_data_url(url: str, limits: ImageLimits, *, param: str) -> Image.Image:
    """Read the header of the image in a data URL. Its pixels are not decoded.

    Raises:
        InvalidRequestError: it is no base64 data URL, the base64 or the header is damaged, or a side is out of range.
        PayloadTooLargeError: the image has more bytes or pixels than allowed.
        UnsupportedMediaError: the image's format is not one of `FORMATS`.
    """
    if url.startswith(("http://", "https://")):
        raise InvalidRequestError(
            f"`{param}`: remote images are not fetched; send the image as data:image/png;base64,…", param=param
        )
    if len(url) > limits.bytes * 4 // 3 + 256:
        raise PayloadTooLargeError(f"`{param}`: an image may have {limits.bytes} bytes", param=param)
    match = _DATA_URL.match(url)
    if match is None:
        raise InvalidRequestError(f"`{param}` must be a data URL such as data:image/png;base64,…", param=param)
    try:
        data = base64.b64decode(match["data"], validate=False)
    except binascii.Error as error:
        raise InvalidRequestError(f"`{param}`: the base64 data is broken: {error}", param=param) from error
    if len(data) > limits.bytes:
        raise PayloadTooLargeError(
            f"`{param}`: the image has {len(data)} bytes; at most {limits.bytes} are allowed", param=param
        )
    with _refusing_damage(limits, param):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the service's own limit is checked below
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > limits.pixels:
            raise PayloadTooLargeError(
                f"`{param}`: the image is {width}x{height}; at most {limits.pixels} pixels are allowed", param=param
            )
        if min(width, height) < MIN_SIDE or max(width, height) > MAX_RATIO * min(width, height):
            raise InvalidRequestError(
                f"`{param}`: the image is {width}x{height}; sides must be at least {MIN_SIDE} pixels and one at most "
                f"{MAX_RATIO} times the other",
                param=param,
            )
        return image


def pixels_of(image: Image.Image, limits: ImageLimits, *, param: str) -> Image.Image:
    """Decode an image whose header is read to RGB. One of more than `exact_pixels` is reduced to so many.

    Raises:
        InvalidRequestError: the image is damaged.
    """
    with _refusing_damage(limits, param):
        if image.width * image.height > limits.exact_pixels:
            _reduce(image, limits.exact_pixels)
        return _on_white(image)


def _reduce(image: Image.Image, pixels: int) -> None:
    scale = math.sqrt(pixels / (image.width * image.height))
    size = max(MIN_SIDE, int(image.width * scale)), max(MIN_SIDE, int(image.height * scale))
    if image.mode in {"RGB", "RGBA", "L", "CMYK", "YCbCr"} and "transparency" not in image.info:
        # A JPEG is decoded at a fraction of its size where that is enough.
        image.thumbnail(size, Image.Resampling.BOX, reducing_gap=2.0)


@contextmanager
def _refusing_damage(limits: ImageLimits, param: str) -> Iterator[None]:
    """Raise what Pillow raises as errors of the request."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise UnsupportedMediaError(
            f"`{param}` is not an image in one of the formats {', '.join(FORMATS)}", param=param
        ) from error
    except Image.DecompressionBombError as error:  # beyond Pillow's own limit, which it checks while it opens
        raise PayloadTooLargeError(
            f"`{param}`: the image is too large ({error}); at most {limits.pixels} pixels are allowed", param=param
        ) from error
    except (OSError, SyntaxError, ValueError) as error:
        raise InvalidRequestError(f"`{param}`: the image is damaged: {error}", param=param) from error


def _on_white(image: Image.Image) -> Image.Image:
    """Convert to RGB: upright according to its EXIF orientation, with transparent pixels on white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow's own conversion cuts everything above 255 to white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        layer = image.convert("RGBA")
        page = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(page, layer).convert("RGB")
    return image.convert("RGB")
