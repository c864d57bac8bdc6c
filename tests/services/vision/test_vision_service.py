"""The vision service: images by data URL through the model's own processor and our engine, as Transformers does it."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import struct
import zlib

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from tessera.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaError
from tessera_vision.images import ImageLimits, decode_data_url

MODEL = "scenes-vision"
LIMITS = ImageLimits(count=2, bytes=100_000, pixels=1_000_000)


def data_url(image: Image.Image, form: str = "PNG") -> str:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(seed: int, width: int = 80, height: int = 50) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def ask(*images: Image.Image, text: str = "Describe") -> list[dict]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [{"role": "user", "content": [{"type": "text", "text": text}, *parts]}]


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("vision-models")


@pytest.fixture(scope="session")
def vision(start_service, models_dir):
    with start_service("vision", suite__models=str(models_dir), vision__engine__threads="1") as service:
        yield service


@pytest.fixture
def client(vision):
    return openai.OpenAI(base_url=f"{vision.url}/v1", api_key="none", max_retries=0, timeout=60)


def test_the_card_says_what_the_model_knows_and_how_well(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert "drawn scenes" in model.card["notice"]
    assert model.card["quality"][0]["value"] >= model.card["quality"][0]["at_least"]
    assert "vision" in model.card["tasks"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_answer_is_transformers_greedy_answer(client, models_dir, count):
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    images = [picture(seed) for seed in range(count)]
    got = client.chat.completions.create(
        model=MODEL, messages=ask(*images), temperature=0, max_tokens=16, extra_body={"ignore_eos": True}
    )
    directory = models_dir / MODEL
    processor = AutoProcessor.from_pretrained(directory)
    content = [{"type": "text", "text": "Describe"}, *({"type": "image"} for _ in images)]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(text=prompt, images=images or None, return_tensors="pt", add_special_tokens=False)
    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    out = model.generate(**inputs, max_new_tokens=16, do_sample=False, eos_token_id=None)
    expected = processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert got.usage.prompt_tokens == inputs["input_ids"].shape[1]
    assert got.choices[0].message.content == expected


def test_another_picture_gives_another_answer(client):
    def logprobs(image: Image.Image) -> list[float]:
        answer = client.chat.completions.create(
            model=MODEL, messages=ask(image), temperature=0, max_tokens=4, logprobs=True
        )
        return [token.logprob for token in answer.choices[0].logprobs.content]

    # What the prefix cache has was computed in other batches: equal but for rounding.
    assert logprobs(picture(1)) == pytest.approx(logprobs(picture(1)), abs=1e-4)
    assert logprobs(picture(1)) != pytest.approx(logprobs(picture(2)), abs=1e-4)


def test_it_streams(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=ask(picture(1)), temperature=0, max_tokens=8, stream=True
    )
    whole = client.chat.completions.create(model=MODEL, messages=ask(picture(1)), temperature=0, max_tokens=8)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content


def test_a_picture_is_the_same_picture_as_a_plain_address_and_as_a_file(client):
    url = data_url(picture(1))
    forms = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "file", "file": {"file_data": url, "filename": "a.png"}},
        {"type": "file", "file": {"file_data": url.partition(",")[2]}},
    ]
    answers = [
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": [{"type": "text", "text": "Describe"}, form]}],
            temperature=0,
            max_tokens=8,
        )
        for form in forms
    ]
    assert len({(one.usage.prompt_tokens, one.choices[0].message.content) for one in answers}) == 1


@pytest.mark.parametrize(
    ("messages", "status", "words"),
    [
        (ask(*(picture(n, 8, 8) for n in range(9))), 400, "9 images; at most 8"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}]}],
            400,
            "remote images are not fetched",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
            415,
            "not an image",
        ),
        ([{"role": "user", "content": [{"type": "video_url"}]}], 400, "video_url"),
        ([{"role": "user"}], 400, "empty"),
    ],
)
def test_bad_images_name_the_part_and_the_limit(vision, messages, status, words):
    answer = httpx.post(f"{vision.url}/v1/chat/completions", json={"model": MODEL, "messages": messages}, timeout=30)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"].startswith("messages")


@pytest.mark.parametrize("place", ["content", "part", "name"])
def test_a_control_token_in_a_users_text_is_refused_by_name(vision, models_dir, place):
    config = json.loads((models_dir / MODEL / "tokenizer.json").read_text())
    token = next(entry["content"] for entry in config["added_tokens"] if entry["special"])
    message = {
        "content": {"content": f"a{token}b"},
        "part": {"content": [{"type": "text", "text": f"a{token}b"}]},
        "name": {"content": "a", "name": token},
    }[place]
    body = {"model": MODEL, "messages": [{"role": "user", **message}]}
    answer = httpx.post(f"{vision.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 400
    assert token in answer.json()["error"]["message"]


def test_low_detail_makes_a_large_image_small(client):
    def logprobs(image: Image.Image, detail: str) -> list[float]:
        parts = [{"type": "image_url", "image_url": {"url": data_url(image), "detail": detail}}]
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=3, logprobs=True
        )
        return [token.logprob for token in answer.choices[0].logprobs.content]

    large = picture(4, 1400, 700)
    small = large.copy()
    small.thumbnail((512, 512))
    assert logprobs(large, "low") == pytest.approx(logprobs(small, "high"), abs=1e-4)


def test_a_photo_stands_upright_as_its_camera_says():
    photo, buffer = picture(3), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # held upright
    photo.save(buffer, "PNG", exif=exif)
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    assert decode_data_url(url, LIMITS, param="p").tobytes() == photo.rotate(270, expand=True).tobytes()


def test_sixteen_bits_a_pixel_are_not_cut_to_white():
    gray = Image.fromarray(np.full((4, 4), 0x8000, dtype=np.uint16))
    assert decode_data_url(data_url(gray), LIMITS, param="p").getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_common_formats_are_read(form):
    assert decode_data_url(data_url(picture(1), form), LIMITS, param="p").size == (80, 50)


def test_transparency_becomes_white():
    image = decode_data_url(data_url(Image.new("RGBA", (4, 4), (0, 0, 0, 0))), LIMITS, param="p")
    assert image.getpixel((0, 0)) == (255, 255, 255)


def bomb(width: int, height: int) -> str:
    """A small PNG file that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    data = b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (bomb(30_000, 30_000), PayloadTooLargeError, "at most 1000000 pixels"),
        (bomb(5_000, 5_000), PayloadTooLargeError, "5000x5000; at most 1000000 pixels"),
        (bomb(900, 1), InvalidRequestError, "900x1"),
        (bomb(100, 100), InvalidRequestError, "damaged"),
        ("data:image/png;base64," + "A" * 200_000, PayloadTooLargeError, "100000 bytes"),
        ("data:image/png;base64,AAAAA", InvalidRequestError, "base64 data is broken"),
        ("data:image/png,xx", InvalidRequestError, "must be a data URL"),
        ("file:///etc/passwd", InvalidRequestError, "must be a data URL"),
        (
            "data:image/svg+xml;base64," + base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
            UnsupportedMediaError,
            "PNG, JPEG",
        ),
    ],
)
def test_hostile_images_are_refused_before_they_are_decoded(url, error, words):
    with pytest.raises(error, match=words):
        decode_data_url(url, LIMITS, param="messages[0].content[1].image_url.url")


def test_more_images_than_may_wait_are_turned_away(start_service, models_dir):
    settings = {"suite__models": str(models_dir), "vision__engine__threads": "1", "vision__engine__max_waiting": "1"}
    with start_service("vision", **settings) as service:
        body = {"model": MODEL, "messages": ask(*(picture(n, 900, 900) for n in range(6))), "max_tokens": 1}
        with concurrent.futures.ThreadPoolExecutor(6) as clients:
            url = f"{service.url}/v1/chat/completions"
            answers = list(clients.map(lambda _: httpx.post(url, json=body, timeout=60), range(6)))
        assert {answer.status_code for answer in answers} == {200, 429}
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)


def test_a_structured_answer_about_a_picture(client):
    schema = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 9}}}
    schema |= {"required": ["count"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ask(picture(1)),
        temperature=1.0,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "found", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content)["count"] in range(10)
    tool = {"type": "function", "function": {"name": "count", "parameters": schema}}
    called = client.chat.completions.create(
        model=MODEL, messages=ask(picture(1)), tools=[tool], tool_choice="required", max_tokens=200
    )
    (call, *_) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["count"] in range(10)
    history = [*ask(picture(1)), called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    assert client.chat.completions.create(model=MODEL, messages=history, tools=[tool], max_tokens=2).choices


def test_the_tokens_of_a_picture_are_counted(client, vision):
    asked = httpx.post(f"{vision.url}/tokenize", json={"model": MODEL, "messages": ask(picture(1))}, timeout=60).json()
    answer = client.chat.completions.create(model=MODEL, messages=ask(picture(1)), max_tokens=1)
    assert asked["count"] == answer.usage.prompt_tokens
    text = httpx.post(f"{vision.url}/detokenize", json={"model": MODEL, "tokens": asked["tokens"]}).json()["prompt"]
    assert "Describe" in text
