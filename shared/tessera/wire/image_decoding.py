"""Messages between a service and the processes that decode its images.

A message is a frame: its length in four bytes, big-endian, then MessagePack. Behind `DecodedImages` come the pixels of
each image, raw.
"""

from __future__ import annotations

import msgspec

from tessera.errors import ErrorBody


class EncodedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image as a client sent it."""

    url: str
    """The image's file as a data URL: a media type and its bytes in base64."""
    param: str
    """Where it stands in the request, for errors."""
    longest_side: int | None = None
    """Longest side that it is reduced to, in pixels; None keeps its size."""


class DecodeImages(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Asks for the pixels of all images of one request."""

    images: list[EncodedImage]
    max_bytes: int
    """Most bytes of one image's file."""
    max_pixels: int
    """Most pixels of one image."""
    max_total_pixels: int
    """Most pixels of all images together."""
    exact_pixels: int
    """Pixels above which an image is reduced while it is decoded."""


class DecodedImages(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The images are decoded; their pixels follow, three bytes each, row by row, image by image."""

    sizes: list[tuple[int, int]]
    """Width and height of each image."""
    resident_bytes: int
    """Memory that the process holds afterwards."""


class ImagesRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An image cannot be used; nothing follows."""

    error: ErrorBody
