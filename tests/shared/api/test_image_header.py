"""What an image's header says, against Pillow."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tessera.api.videos.image_header import image_size, image_type

WAYS: list[tuple[str, str, dict[str, Any]]] = [
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("JPEG", "RGB", {}),
    ("JPEG", "L", {"progressive": True}),
    ("JPEG", "RGB", {"exif": b"Exif\0\0" + b"x" * 3000, "comment": b"hello"}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGBA", {"exif": b"Exif\0\0"}),
]


def made(form: str, mode: str, size: tuple[int, int], **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(("form", "mode", "options"), WAYS)
def test_the_size_is_what_pillow_reads(form: str, mode: str, options: dict[str, Any]) -> None:
    for size in ((1, 1), (3, 700), (1030, 17)):
        data = made(form, mode, size, **options)
        assert (image_type(data), image_size(data)) == (f"image/{form.lower()}", size)


@pytest.mark.parametrize(("form", "mode", "options"), WAYS)
def test_a_header_that_is_cut_has_no_size(form: str, mode: str, options: dict[str, Any]) -> None:
    whole = made(form, mode, (40, 30), **options)
    sizes = [image_size(whole[:length]) for length in range(min(60, len(whole)))]
    assert sizes[:16] == [None] * 16
    assert set(sizes) <= {None, (40, 30)}


@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b""]), st.binary(max_size=80))
def test_junk_is_never_an_error(head: bytes, rest: bytes) -> None:
    size = image_size(head + rest)
    assert size is None or min(size) > 0
