"""Many requests at once: each answer is what it would be alone, and no modality stops another."""

from __future__ import annotations

import asyncio
import base64
import re
import time
import warnings
from collections.abc import Awaitable
from typing import Any

import openai
import pytest

from tessera.demo.page import picture

TEXT = "smollm2-135m-instruct"
# Answers to these are nowhere a close call (the two likeliest tokens differ by 0.02 or more in log-probability).
TOPICS = re.findall(
    r"\w+",
    "rain snow fire iron gold salt bread milk tea rice corn wood glass paper ink wool silk stone sand clay wind ice "
    "smoke coal oil lemon honey wine cheese soap rope brick",
)
MAX_TOKENS = 6


def asked(topic: str) -> dict[str, Any]:
    prompt = f"Here is a short fact for children about {topic}, and why it matters:"  # and so into the second page
    return {"model": TEXT, "prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS}


def client_of(suite: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{suite.base_url}/v1", api_key="any", max_retries=0, timeout=120)


async def streamed(client: openai.AsyncOpenAI, topic: str) -> tuple[str, list[float]]:
    """The text, and when its pieces came."""
    text, times = "", []
    stream = await client.completions.create(**asked(topic), stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].text:
            text += chunk.choices[0].text
            times.append(time.perf_counter())
    return text, times


def test_32_streams_at_once_say_what_each_says_alone(suite: Any) -> None:
    async def all_at_once() -> list[tuple[str, list[float]]]:
        async with client_of(suite) as client:
            return await asyncio.gather(*(streamed(client, topic) for topic in TOPICS))

    assert len(TOPICS) == 32
    together = asyncio.run(all_at_once())
    with suite.sdk() as client:
        alone = [client.completions.create(**asked(topic)).choices[0].text for topic in TOPICS]
    assert [text for text, _ in together] == alone
    assert len(set(alone)) > 24
    most = max(sum(other[0] <= times[-1] <= other[-1] for _, other in together) for _, times in together)
    assert most >= 16, f"at most {most} streams ran at once"
    assert suite.metric("text", "tessera_text_engine_kv_pages_used") == 0


def test_all_modalities_are_served_at_once(suite: Any) -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]

    async def write(client: openai.AsyncOpenAI, number: int) -> None:
        text, _ = await streamed(client, TOPICS[number])
        assert text

    async def look(client: openai.AsyncOpenAI) -> None:
        messages: Any = [{"role": "user", "content": parts}]
        answer = await client.chat.completions.create(model="scenes-vision", messages=messages, max_tokens=6)
        assert answer.usage
        assert answer.usage.completion_tokens

    async def embed(client: openai.AsyncOpenAI, number: int) -> None:
        answer = await client.embeddings.create(model=TEXT, input=[TOPICS[number]] * 3)
        assert len(answer.data) == 3

    async def speak_and_transcribe(client: openai.AsyncOpenAI) -> None:
        spoken = await client.audio.speech.create(
            model="english-voices", voice="alloy", input="Small stones.", response_format="flac"
        )
        transcript = await client.audio.transcriptions.create(
            model="english-transcription", file=("speech.flac", spoken.content)
        )
        assert transcript.usage

    async def film(client: openai.AsyncOpenAI) -> None:
        video = await client.videos.create_and_poll(
            prompt="stones", model="shapes-video", seconds="1", extra_body={"steps": 2}, poll_interval_ms=100
        )
        assert video.status == "completed"
        assert (await client.videos.download_content(video.id)).content

    async def all_at_once() -> None:
        async with client_of(suite) as client:
            work: list[Awaitable[None]] = [
                *(write(client, number) for number in range(8)),
                *(look(client) for _ in range(6)),
                *(embed(client, number) for number in range(6)),
                *(speak_and_transcribe(client) for _ in range(6)),
                *(film(client) for _ in range(4)),
            ]
            await asyncio.gather(*work)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.run(all_at_once())


@pytest.mark.parametrize("limit", [4096, 1_000_000])
def test_the_largest_answer_that_is_allowed_and_more_can_be_asked_for(suite: Any, limit: int) -> None:
    messages = [{"role": "user", "content": "What is the capital of Japan?"}]
    answer = suite.sdk().chat.completions.create(model=TEXT, messages=messages, temperature=0, max_tokens=limit)
    assert answer.choices[0].finish_reason == "stop"
