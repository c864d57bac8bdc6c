"""What a user sees when the text service cannot load its model."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal

import httpx
import pytest
from tests.waiting import until


def until_failed(service) -> None:
    def failed() -> bool:
        with contextlib.suppress(OSError):
            return service.parts() == {"engine": "failed"}
        return False

    until(failed, 120, what="the engine to be failed", every_s=0.05)


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
        until_failed(service)
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


SYSTEM = "You are a patient librarian who answers in verse. " * 3


def test_pinned_system_prompts_are_known_before_the_first_request_and_after_an_engine_died(
    start_service, tiny_text_model
):
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1"}
    settings |= {"text__pinned_prompts": SYSTEM, "text__engine__kv_cache_bytes": str(64 * 16 * 2 * 2 * 32 * 4)}

    def cached(service, system: str) -> int:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
        body = {"model": "tiny-text", "messages": messages, "max_tokens": 4}
        answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with start_service("text", **settings) as service:
        for attempt in range(2):
            for number in range(12):  # what is not pinned is soon gone
                assert cached(service, f"{number} others. " * 20) < 16
            assert cached(service, SYSTEM) >= len(SYSTEM) // 16 * 16
            if attempt == 0:
                os.kill(service.engine_pid(), signal.SIGKILL)
                service.wait_ready()


def test_pinned_prompts_that_would_fill_the_cache_are_refused_with_the_cure(start_service, tiny_text_model):
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1", "text__pinned_prompts": SYSTEM * 9}
    settings["text__engine__kv_cache_bytes"] = str(64 * 16 * 2 * 2 * 32 * 4)
    with start_service("text", wait=False, **settings) as service:
        until_failed(service)
        body = {"model": "tiny-text", "prompt": "abc", "max_tokens": 1}
        answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=30)
        assert answer.status_code == 503, "not the fault of who asks"
        assert "`kv_cache_bytes` larger or the pinned prompts shorter" in answer.json()["error"]["message"]
