"""Images through the gateway with OpenAI's SDK, from a real model in a real worker."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

VIDEO = "shapes-video"


def _picture(encoded: str | None) -> Image.Image:
    assert encoded is not None
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


@pytest.mark.parametrize("through", [None, "video"], ids=["gateway", "service"])
def test_images_from_the_sdk(suite: Any, through: str | None) -> None:
    client = suite.sdk(service=through)
    more = {"seed": 5, "steps": 3}
    made = client.images.generate(prompt="a red ball", model=VIDEO, n=2, size="96x64", extra_body=more)
    pictures = [_picture(image.b64_json) for image in made.data]
    assert [(picture.format, picture.size) for picture in pictures] == [("PNG", (96, 64))] * 2
    assert (made.output_format, made.size, made.quality, made.background) == ("png", "96x64", "medium", "opaque")
    assert pictures[0].tobytes() != pictures[1].tobytes()

    second = client.images.generate(prompt="a red ball", model=VIDEO, size="96x64", extra_body={**more, "seed": 6})
    again = np.asarray(_picture(second.data[0].b64_json)).astype(int)
    # The first time it shared its forward passes with another image, which rounds in the last bit of a float.
    assert np.abs(again - np.asarray(pictures[1])).max() <= 1, "its seed makes an image again"
    said = json.loads(pictures[1].getexif()[0x010E])
    assert (said["prompt"], said["seed"], said["steps"], said["model"]) == ("a red ball", 6, 3, VIDEO)


@pytest.mark.parametrize(("output_format", "name"), [("jpeg", "JPEG"), ("webp", "WEBP")])
def test_an_image_comes_in_the_format_that_was_asked_for(suite: Any, output_format: Any, name: str) -> None:
    made = suite.sdk().images.generate(
        prompt="a boat", output_format=output_format, output_compression=70, quality="low", response_format="b64_json"
    )
    assert _picture(made.data[0].b64_json).format == name


def test_what_cannot_be_is_refused_with_its_field(suite: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        suite.sdk().images.generate(prompt="a boat", size="1024x1023")
    assert refused.value.param == "size"


def test_a_client_that_leaves_ends_its_job(suite: Any, wait: Callable[..., Any]) -> None:
    body = json.dumps({"prompt": "a long wait", "n": 4, "size": "256x256", "steps": 100, "deadline_s": 300}).encode()
    head = "POST /v1/images/generations HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(suite.base_url).port)) as line:
        line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait(lambda: suite.metric("video", "tessera_jobs_in_progress") > 0, "the job to begin")
    wait(lambda: suite.metric("video", "tessera_jobs_in_progress") == 0, "the job to end", within_s=20)
    assert not list((suite.data / "artifacts").glob("image_*"))
