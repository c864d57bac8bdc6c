"""A live conversation through the whole suite: real speech in, a real language model, real speech out, by the SDK."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import av
import httpx
import numpy as np
import openai

SPEECH = "english-voices"
TRANSCRIPTION = "english-transcription"
CHAT = "smollm2-135m-instruct"
QUESTION = "Every large picture is made of small stones."
RATE = 24_000


def said(suite: Any) -> np.ndarray[Any, Any]:
    """The question as the suite itself speaks it, with silence around it: int16 at `RATE`."""
    body = {"model": SPEECH, "input": QUESTION, "response_format": "pcm", "seed": 1}
    data = httpx.post(f"{suite.base_url}/v1/audio/speech", json=body, timeout=60).raise_for_status().content
    silence = np.zeros(RATE, dtype="<i2")
    return np.concatenate([silence, np.frombuffer(data, dtype="<i2"), silence])


def sent(samples: np.ndarray[Any, Any]) -> list[str]:
    pieces = [samples[begin : begin + RATE // 10] for begin in range(0, samples.size, RATE // 10)]
    return [base64.b64encode(piece.tobytes()).decode() for piece in pieces]


def test_what_is_said_live_is_heard_and_answered_with_speech(suite: Any) -> None:
    question = said(suite)

    async def talk() -> list[Any]:
        seen: list[Any] = []
        client = openai.AsyncOpenAI(base_url=f"{suite.base_url}/v1", api_key="any")
        async with client.realtime.connect(model=CHAT) as line:
            await line.session.update(
                session={"type": "realtime", "instructions": "Answer in one short sentence.", "max_output_tokens": 24}
            )
            for piece in sent(question):
                await line.input_audio_buffer.append(audio=piece)
            async for event in line:
                assert event.type != "error", event
                seen.append(event)
                if event.type == "response.done":
                    return seen
        return seen

    seen = asyncio.run(asyncio.wait_for(talk(), 240))
    kinds = [event.type for event in seen]
    assert kinds[0] == "session.created"
    assert kinds.index("input_audio_buffer.speech_started") < kinds.index("input_audio_buffer.speech_stopped")
    assert kinds.index("input_audio_buffer.committed") < kinds.index("response.output_audio.delta")
    transcribed = next(event for event in seen if event.type.endswith("input_audio_transcription.completed"))
    assert transcribed.transcript
    answer = "".join(event.delta for event in seen if event.type == "response.output_audio_transcript.delta")
    sound = b"".join(base64.b64decode(event.delta) for event in seen if event.type == "response.output_audio.delta")
    assert answer.strip()
    assert len(sound) / 2 / RATE > 0.02 * len(answer), "people say some fifteen characters a second"
    assert seen[-1].response.status == "completed"
    assert seen[-1].response.usage.output_tokens <= 24


def test_a_live_transcript_is_that_of_the_file(suite: Any) -> None:
    question = said(suite)
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(question[None, :], format="s16", layout="mono")
        frame.sample_rate = RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))

    async def talk() -> str:
        client = openai.AsyncOpenAI(base_url=f"{suite.base_url}/v1", api_key="any")
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as line:
            update: Any = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
            await line.session.update(session=update)
            for piece in sent(question):
                await line.input_audio_buffer.append(audio=piece)
            await line.input_audio_buffer.commit()
            async for event in line:
                assert event.type != "error", event
                if event.type.endswith("input_audio_transcription.completed"):
                    return str(event.transcript)
        return ""

    expected = suite.sdk().audio.transcriptions.create(model=TRANSCRIPTION, file=("said.wav", file.getvalue())).text
    assert asyncio.run(asyncio.wait_for(talk(), 120)) == expected
