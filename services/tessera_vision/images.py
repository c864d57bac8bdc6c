"""Decodes images from data URLs, under limits that are checked before any pixel is decoded.

Knows nothing about models. Remote addresses are refused: a server that fetches any address can be used to attack its
own network.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
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
    """

    count: int
    bytes: int
    pixels: int


def decode_data_url(url: str, limits: ImageLimits, *, param: str) -> Image.Image:
    """Decode the image in a data URL to RGB.

    Raises:
        InvalidRequestError: it is no base64 data URL, the base64 or the image is damaged, or a side is out of range.
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
    return _decode(data, limits, param)


def _decode(data: bytes, limits: ImageLimits, param: str) -> Image.Image:
    try:
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
        return _on_white(image)
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
