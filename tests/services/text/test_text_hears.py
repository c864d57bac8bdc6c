"""The text service beside a real speech service: what is said in a recording is what the model reads."""

from __future__ import annotations

import base64

import httpx
import pytest
from tests.services.text.test_text_tools import post

START_S = 500.0
"""Seconds in which a busy machine has imported and loaded the models of speech."""


@pytest.mark.slow
def test_a_spoken_sentence_reaches_the_prompt_as_its_transcript(start_service, tiny_text_model):
    with start_service("speech", wait=False, speech__threads="1", speech__device="cpu") as speech:
        settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1", "speech__url": speech.url}
        with start_service("text", wait=False, **settings) as text:
            speech.wait_ready(START_S)
            text.wait_ready(START_S)
            asked = {"model": "english-voices", "input": "Every large picture is made of small stones."}
            wav = httpx.post(f"{speech.url}/v1/audio/speech", json={**asked, "response_format": "wav"}, timeout=120)
            assert wav.status_code == 200, wav.text
            form = {"model": (None, "english-transcription"), "file": ("a.wav", wav.content)}
            heard = httpx.post(f"{speech.url}/v1/audio/transcriptions", files=form, timeout=120).json()["text"]
            assert "picture" in heard.lower()

            def ask(data: bytes) -> httpx.Response:
                audio = {
                    "type": "input_audio",
                    "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"},
                }
                return post(text, "/tokenize", messages=[{"role": "user", "content": [audio]}])

            tokens = ask(wav.content).json()["tokens"]
            prompt = post(text, "/detokenize", tokens=tokens).json()["prompt"]
            assert prompt == f"user: {heard}\nassistant:"
            damaged = ask(wav.content[:30] + b"nonsense" * 99)
            assert damaged.status_code in {400, 415}
            assert damaged.json()["error"]["param"] == "messages[0].content[0].input_audio.data"
            short = ask(wav.content[:60])
            assert short.status_code == 400, short.text
