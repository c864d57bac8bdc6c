"""One picture through every protocol: the vision service's own routes, and Ollama's at a gateway before it."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image

MODEL = "scenes-vision"
TEXT = "Describe"
Ask = Callable[[bytes | None], tuple[str, int]]


@pytest.fixture(scope="module")
def vision(start_service: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    models = tmp_path_factory.mktemp("vision-models")
    with start_service("vision", suite__models=str(models), vision__engine__threads="1") as service:
        yield service


@pytest.fixture(scope="module")
def gateway(start_service: Any, vision: Any) -> Iterator[Any]:
    port = str(urlsplit(vision.url).port)
    with start_service("gateway", gateway__services="vision", vision__port=port) as service:
        yield service


def picture() -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 255, (50, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def post(url: str, **body: Any) -> Any:
    answer = httpx.post(url, json={"model": MODEL, **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def asked_of_chat(url: str, image: bytes | None) -> tuple[str, int]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}}] if image else []
    messages = user({"type": "text", "text": TEXT}, *parts)
    answer = post(f"{url}/v1/chat/completions", messages=messages, temperature=0, max_tokens=8)
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def asked_of_responses(url: str, image: bytes | None) -> tuple[str, int]:
    parts = [{"type": "input_image", "image_url": data_url(image)}] if image else []
    turns = user({"type": "input_text", "text": TEXT}, *parts)
    answer = post(f"{url}/v1/responses", input=turns, temperature=0, max_output_tokens=8, store=False)
    (message,) = answer["output"]
    return message["content"][0]["text"], answer["usage"]["input_tokens"]


def asked_of_messages(url: str, image: bytes | None) -> tuple[str, int]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image or b"").decode()}
    parts = [{"type": "image", "source": source}] if image else []
    messages = user({"type": "text", "text": TEXT}, *parts)
    answer = post(f"{url}/v1/messages", messages=messages, temperature=0, max_tokens=8)
    used = answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"]
    assert post(f"{url}/v1/messages/count_tokens", messages=messages) == {"input_tokens": used}
    return answer["content"][0]["text"], used


def asked_of_ollama(url: str, image: bytes | None, path: str) -> tuple[str, int]:
    images = {"images": [base64.b64encode(image).decode()]} if image else {}
    said = (
        {"prompt": TEXT, **images} if path == "generate" else {"messages": [{"role": "user", "content": TEXT} | images]}
    )
    answer = post(f"{url}/api/{path}", **said, stream=False, options={"temperature": 0, "num_predict": 8})
    text = answer["response"] if path == "generate" else answer["message"]["content"]
    return text, answer["prompt_eval_count"]


@pytest.mark.parametrize("protocol", ["responses", "messages", "ollama's chat", "ollama's generate"])
def test_a_picture_is_the_same_picture_in_every_protocol(request, vision, protocol):
    ask = {"responses": asked_of_responses, "messages": asked_of_messages}.get(protocol)
    for image in (picture(), None):
        if ask is not None:
            found = ask(vision.url, image)
        else:
            gateway = request.getfixturevalue("gateway")
            found = asked_of_ollama(gateway.url, image, protocol.split()[-1])
        assert found == asked_of_chat(vision.url, image)
    assert asked_of_chat(vision.url, picture())[1] > asked_of_chat(vision.url, None)[1]
