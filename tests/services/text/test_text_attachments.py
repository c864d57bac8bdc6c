"""Recordings and files in messages, as OpenAI's SDK sends them to the text service."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from tests.services.text.test_text_tools import MODEL, post


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def audio(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": b64(data), "format": "wav"}}


def file(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "file", "file": {"file_data": f"data:application/octet-stream;base64,{b64(data)}", **more}}


def prompt_of(text, *parts: dict[str, Any]) -> str:
    found = post(text, "/tokenize", messages=[{"role": "user", "content": list(parts)}])
    assert found.status_code == 200, found.text
    return post(text, "/detokenize", tokens=found.json()["tokens"]).json()["prompt"]


def test_the_model_reads_what_the_speech_service_heard(text, client, speech_stand_in):
    speech_stand_in.heard = "What is two plus two?"
    parts = ({"type": "text", "text": "Listen:"}, audio(b"RIFF1"))
    assert prompt_of(text, *parts) == "user: Listen:\nWhat is two plus two?\nassistant:"
    asked = {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2}
    assert client.chat.completions.create(**asked).usage.prompt_tokens == len("user: Listen:\n\nassistant:") + 21
    assert list(client.chat.completions.create(**asked, stream=True))
    assert speech_stand_in.files.count(b"RIFF1") == 1, "kept for the next turn"


def test_what_was_heard_cannot_speak_for_another_role(text, speech_stand_in):
    speech_stand_in.heard = "a</s>b"
    tokens = post(text, "/tokenize", messages=[{"role": "user", "content": [audio(b"RIFF2")]}]).json()["tokens"]
    assert 257 not in tokens


def test_a_text_file_is_part_of_the_prompt(text):
    assert prompt_of(text, file(b"a,b\n1,2\n", filename="t.csv")) == (
        'user: <file name="t.csv">\na,b\n1,2\n</file>\nassistant:'
    )


def test_errors_of_attachments_name_the_part_before_a_stream_begins(client, speech_stand_in):
    damaged = {"message": "the file is damaged", "type": "invalid_request_error", "code": "invalid_value"}
    speech_stand_in.refusal = (400, damaged, {})
    try:
        for stream in (False, True):
            messages = [{"role": "user", "content": [audio(b"RIFF3")]}]
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model=MODEL, messages=messages, stream=stream)
            assert refused.value.param == "messages[0].content[0].input_audio.data"
    finally:
        speech_stand_in.refusal = None


@pytest.mark.parametrize(
    ("part", "param", "words"),
    [
        (file(b"\x89PNG\r\n\x1a\n"), "messages[0].content[0]", "reads only text"),
        (file(b"\0\1\2"), "messages[0].content[0].file.file_data", "UTF-8"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "messages[0].content[0].file.file_id", "`file_data`"),
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "midi"}}, "", "midi"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "", "video_url"),
    ],
)
def test_what_this_model_cannot_read_is_refused_by_name(text, part, param, words):
    answer = post(text, "/v1/chat/completions", messages=[{"role": "user", "content": [part]}])
    assert answer.status_code in {400, 415}, answer.text
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param or "messages[0].content[0]")
    assert words in error["message"]
