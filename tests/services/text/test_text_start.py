"""What a user sees when the text service cannot load its model."""

from __future__ import annotations

import shutil
import time

import httpx
import pytest


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "there is no model directory"),
        (lambda folder: folder.mkdir(), "neither config.json nor model_index.json"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_said_in_ready_and_in_each_answer(start_service, tmp_path, make, words):
    directory = tmp_path / "absent"
    make(directory)
    with start_service("text", wait=False, text__model=str(directory)) as service:
        deadline = time.monotonic() + 60
        while True:
            try:
                if service.parts() == {"engine": "failed"}:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.05)
        answer = httpx.post(f"{service.url}/v1/completions", json={"model": "absent", "prompt": "x"})
        assert answer.status_code == 503
        assert words in answer.json()["error"]["message"]
        assert httpx.get(f"{service.url}/health").status_code == 200


def test_a_configuration_alone_is_enough_for_dummy_weights(start_service, tiny_text_model, tmp_path):
    directory = tmp_path / "shapes"
    shutil.copytree(tiny_text_model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    with start_service("text", text__model=str(directory), text__engine__load="dummy") as service:
        (model,) = httpx.get(f"{service.url}/v1/models").json()["data"]
        assert "random weights" in model["card"]["notice"]
        body = {"model": "shapes", "prompt": "abc", "max_tokens": 12, "ignore_eos": True}
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 12
