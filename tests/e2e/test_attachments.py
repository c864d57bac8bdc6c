"""Recordings and files in messages, through the gateway: the model reads what the speech service heard."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest

TEXT = "smollm2-135m-instruct"
VISION = "scenes-vision"
SENTENCE = "Every large picture is made of small stones."


def spoken(suite: Any) -> bytes:
    with suite.sdk().audio.speech.with_streaming_response.create(
        model="english-voices", voice="alloy", input=SENTENCE, response_format="wav", extra_body={"seed": 1}
    ) as response:
        return response.read()


def ask(suite: Any, model: str, *parts: dict[str, Any]) -> Any:
    messages: Any = [{"role": "user", "content": list(parts)}]
    return suite.sdk().chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=8)


@pytest.mark.parametrize("model", [TEXT, VISION])
def test_a_model_reads_what_was_said_in_a_recording(suite: Any, model: str) -> None:
    recording = spoken(suite)
    heard = suite.sdk().audio.transcriptions.create(model="english-transcription", file=("a.wav", recording)).text
    assert "picture" in heard.lower()
    question = {"type": "text", "text": "Repeat:"}
    audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(recording).decode(), "format": "wav"}}
    by_ear = ask(suite, model, question, audio)
    by_eye = ask(suite, model, question, {"type": "text", "text": heard})
    assert by_ear.usage.prompt_tokens == by_eye.usage.prompt_tokens
    assert by_ear.choices[0].message.content == by_eye.choices[0].message.content


def test_a_damaged_recording_is_the_clients_error(suite: Any) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF" * 99).decode(), "format": "wav"}}
    with pytest.raises(openai.APIStatusError) as refused:
        ask(suite, TEXT, audio)
    assert refused.value.status_code in {400, 415}
    assert refused.value.param == "messages[0].content[0].input_audio.data"


def test_a_model_reads_a_file(suite: Any) -> None:
    data = base64.b64encode(b"city,country\nTokyo,Japan\n").decode()
    file = {"type": "file", "file": {"file_data": f"data:text/csv;base64,{data}", "filename": "cities.csv"}}
    read = ask(suite, TEXT, file)
    text = '<file name="cities.csv">\ncity,country\nTokyo,Japan\n</file>'
    assert read.usage.prompt_tokens == ask(suite, TEXT, {"type": "text", "text": text}).usage.prompt_tokens
