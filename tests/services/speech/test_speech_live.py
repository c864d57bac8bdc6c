"""Live sessions as OpenAI's SDK has them: a real service and engine, a language model that says what it is told."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import openai
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from tests.waiting import until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

WAIT_S = 30.0
TRANSCRIPTION = "tiny-random-transcription"
SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
MANUAL = {"audio": {"input": {"turn_detection": None}}}
NAME = "conversation.item.input_audio_transcription"


class Client:
    """A WebSocket that checks every event against the SDK's types."""

    def __init__(self, line: ClientConnection) -> None:
        self.line = line
        self.seen: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.line.send(json.dumps({"type": kind, **fields}))

    async def next(self) -> dict[str, Any]:
        event = json.loads(await asyncio.wait_for(self.line.recv(), 60))
        SERVER_EVENT.validate_python(event)
        self.seen.append(event)
        return event

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The next event of a kind (the `count`th from now)."""
        while True:
            event = await self.next()
            assert event["type"] != "error" or kind == "error", event
            count -= event["type"] == kind
            if count == 0:
                return event

    async def append(self, samples: np.ndarray[Any, Any], piece_s: float = 0.1) -> None:
        data = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        step = int(48_000 * piece_s) // 2 * 2
        for begin in range(0, len(data), step):
            audio = base64.b64encode(data[begin : begin + step]).decode()
            await self.send("input_audio_buffer.append", audio=audio)

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.seen]


@pytest.fixture
def session(service: Any) -> Callable[..., Any]:
    @asynccontextmanager
    async def opened(query: str = "", **headers: str) -> AsyncIterator[Client]:
        url = f"{service.url.replace('http', 'ws')}/v1/realtime{query}"
        async with connect(url, additional_headers=headers) as line:
            client = Client(line)
            assert (await client.next())["type"] == "session.created"
            yield client

    return opened


@pytest.fixture(autouse=True)
def plain_chat(chat: Any) -> None:
    chat.behave, chat.says = "plainly", "Hello there, friend. How are you today?"
    chat.asked.clear()
    chat.left.clear()


def quiet(seconds: float) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(0, 1e-4, int(seconds * 24_000)).astype(np.float32)


def spoken(melody: Any, seconds: float) -> np.ndarray[Any, Any]:
    return melody(seconds, 24_000)


# ---- transcription


def test_the_sdk_transcribes_live(service: Any, melody: Any) -> None:
    async def talk() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none")
        seen = []
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as line:
            await line.session.update(
                session={
                    "type": "transcription",
                    "audio": {
                        "input": {"transcription": {"model": TRANSCRIPTION, "language": "en"}, "turn_detection": None}
                    },
                }
            )
            data = (spoken(melody, 2.0) * 32767).astype("<i2").tobytes()
            await line.input_audio_buffer.append(audio=base64.b64encode(data).decode())
            await line.input_audio_buffer.commit()
            async for event in line:
                seen.append(event)
                if event.type == f"{NAME}.completed":
                    return seen
        return seen

    seen = asyncio.run(talk())
    assert [event.type for event in seen[:3]] == ["session.created", "session.updated", "input_audio_buffer.committed"]
    deltas = [event.delta for event in seen if event.type == f"{NAME}.delta"]
    assert "".join(deltas) == seen[-1].transcript != ""
    assert seen[-1].usage.seconds == pytest.approx(2.0, abs=0.01)
    assert {event.item_id for event in seen if event.type.startswith(NAME)} == {seen[2].item_id}


def test_a_live_transcript_is_that_of_the_same_file(service: Any, session: Any, melody: Any, recording: Any) -> None:
    samples = spoken(melody, 3.0)

    async def talk() -> str:
        async with session("?intent=transcription") as client:
            language = {"transcription": {"language": "en"}, "turn_detection": None}
            await client.send("session.update", session={"audio": {"input": language}})
            await client.append(samples)
            await client.send("input_audio_buffer.commit")
            return (await client.until(f"{NAME}.completed"))["transcript"]

    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none") as sdk:
        file = ("a.wav", recording("wav", samples, 24_000))
        expected = sdk.audio.transcriptions.create(model=TRANSCRIPTION, file=file, language="en").text
    assert asyncio.run(talk()) == expected


def test_the_server_hears_turns(session: Any, melody: Any) -> None:
    async def talk() -> Client:
        async with session("?intent=transcription") as client:
            for sound in (quiet(1.0), spoken(melody, 1.5), quiet(1.0), spoken(melody, 1.0), quiet(1.0)):
                await client.append(sound)
            await client.until(f"{NAME}.completed", 2)
            return client

    seen = asyncio.run(talk()).seen
    turns = [event for event in seen if event["type"].startswith("input_audio_buffer.")]
    assert [event["type"].split(".")[1] for event in turns] == ["speech_started", "speech_stopped", "committed"] * 2
    assert turns[0]["audio_start_ms"] == pytest.approx(1000 - 300, abs=100)
    assert turns[1]["audio_end_ms"] == pytest.approx(2500 + 500, abs=150)
    assert turns[3]["audio_start_ms"] == pytest.approx(3500 - 300, abs=100)
    assert turns[0]["item_id"] == turns[1]["item_id"] == turns[2]["item_id"] != turns[3]["item_id"]
    assert turns[5]["previous_item_id"] == turns[2]["item_id"]
    # Turns are transcribed side by side, so a short one may be done before a longer one that came first.
    seconds = {event["item_id"]: event["usage"]["seconds"] for event in seen if event["type"] == f"{NAME}.completed"}
    assert seconds[turns[2]["item_id"]] == pytest.approx(2.3, abs=0.2)
    assert seconds[turns[5]["item_id"]] == pytest.approx(1.8, abs=0.2)


def test_silence_is_no_turn(session: Any) -> None:
    async def talk() -> Client:
        async with session("?intent=transcription") as client:
            await client.append(quiet(4.0))
            await client.send("conversation.item.retrieve", item_id="none", event_id="last")
            await client.until("error")
            return client

    assert asyncio.run(talk()).kinds() == ["session.created", "error"]


def test_who_never_pauses_is_written_down_every_minute(session: Any, melody: Any) -> None:
    async def talk() -> Client:
        async with session("?intent=transcription") as client:
            await client.append(spoken(melody, 70.0), piece_s=3.0)
            await client.until("input_audio_buffer.speech_started", 2)
            return client

    turns = [event for event in asyncio.run(talk()).seen if event["type"].startswith("input_audio_buffer.")]
    assert [event["type"].split(".")[1] for event in turns[:3]] == ["speech_started", "speech_stopped", "committed"]
    assert turns[1]["audio_end_ms"] == pytest.approx(60_000, abs=3_100)


# ---- conversation


async def told(client: Client, text: str = "Hi.") -> None:
    await client.send("conversation.item.create", item=message(text))
    await client.until("conversation.item.done")


def message(text: str, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_speech_is_answered_with_speech(session: Any, chat: Any, melody: Any) -> None:
    async def talk() -> Client:
        async with session("?model=fake-chat", **{"x-tessera-tenant": "somebody"}) as client:
            await client.send("session.update", session={"type": "realtime", "instructions": "Be kind."})
            for sound in (quiet(0.5), spoken(melody, 1.2), quiet(1.0)):
                await client.append(sound)
            await client.until("response.done")
            return client

    seen = asyncio.run(talk()).seen
    kinds = [event["type"] for event in seen]
    in_order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "response.created",
        f"{NAME}.completed",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    assert [kinds.index(kind) for kind in in_order] == sorted(kinds.index(kind) for kind in in_order)
    deltas = [event["delta"] for event in seen if event["type"] == "response.output_audio_transcript.delta"]
    assert "".join(deltas) == chat.says
    assert len(deltas) == len(chat.says.split())
    sound = b"".join(base64.b64decode(e["delta"]) for e in seen if e["type"] == "response.output_audio.delta")
    assert len(sound) / 48_000 > 1.0
    done = seen[-1]["response"]
    assert (done["status"], done["usage"]["total_tokens"]) == ("completed", 12)
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": chat.says}]
    transcript = next(event["transcript"] for event in seen if event["type"] == f"{NAME}.completed")
    assert chat.asked[0]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": transcript},
    ]
    assert (chat.asked[0]["model"], chat.tenants[-1]) == ("fake-chat", "somebody")


def test_an_answer_may_be_text_alone(session: Any, chat: Any) -> None:
    async def talk() -> Client:
        async with session() as client:
            await told(client)
            await client.send("response.create", response={"output_modalities": ["text"], "max_output_tokens": 9})
            await client.until("response.done")
            await told(client, "And now?")
            await client.send("response.create", response={"output_modalities": ["text"], "conversation": "none"})
            await client.until("response.done")
            return client

    client = asyncio.run(talk())
    assert "response.output_audio.delta" not in client.kinds()
    assert client.seen[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": chat.says}]
    assert chat.asked[0]["model"] == "fake-chat", "the first model that there is"
    assert chat.asked[0]["max_tokens"] == 9
    assert [each["role"] for each in chat.asked[1]["messages"]] == ["user", "assistant", "user"]


def test_speech_interrupts_an_answer(session: Any, chat: Any, melody: Any) -> None:
    chat.behave = "endless"

    async def talk() -> Client:
        async with session() as client:
            await told(client)
            await client.send("response.create")
            await client.until("response.output_audio.delta")
            for sound in (quiet(0.5), spoken(melody, 1.0)):
                await client.append(sound)
            await client.until("response.done")
            chat.behave = "plainly"
            await client.append(quiet(1.0))
            await client.until("response.done")
            return client

    seen = asyncio.run(talk()).seen
    done = [event["response"] for event in seen if event["type"] == "response.done"]
    assert done[0]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done[0]["output"][0]["status"] == "incomplete"
    assert done[1]["status"] == "completed"
    kinds = [event["type"] for event in seen]
    assert kinds.index("input_audio_buffer.speech_started") < kinds.index("response.done")
    until(chat.left.is_set, WAIT_S)


def test_a_client_cancels_and_goes_on(session: Any, chat: Any) -> None:
    chat.behave = "endless"

    async def talk() -> Client:
        async with session() as client:
            await told(client)
            await client.send("response.create")
            await client.until("response.output_audio.delta")
            await client.send("response.create", event_id="second")
            assert (await client.until("error"))["error"]["code"] == "conversation_already_has_active_response"
            await client.send("response.cancel")
            done = await client.until("response.done")
            assert done["response"]["status_details"]["reason"] == "client_cancelled"
            await client.send("response.cancel", event_id="late")
            assert (await client.until("error"))["error"]["code"] == "response_cancel_not_active"
            chat.behave = "plainly"
            await client.send("response.create")
            await client.until("response.done")
            return client

    assert asyncio.run(talk()).seen[-1]["response"]["status"] == "completed"
    until(chat.left.is_set, WAIT_S)


def test_a_client_that_leaves_ends_its_answer(service: Any, session: Any, chat: Any) -> None:
    chat.behave = "endless"

    async def talk() -> None:
        async with session() as client:
            await told(client)
            await client.send("response.create")
            await client.until("response.output_audio.delta")

    asyncio.run(talk())
    until(chat.left.is_set, WAIT_S)
    until(lambda: service.metric("requests_running") == service.metric("requests_waiting") == 0, WAIT_S)


@pytest.mark.parametrize(("behave", "code"), [("refuse", "model_not_found"), ("cut", None), ("full", None)])
def test_what_the_language_model_does_wrong_is_told(behave: str, code: str | None, session: Any, chat: Any) -> None:
    chat.behave = behave

    async def talk() -> dict[str, Any]:
        async with session() as client:
            for number in range(5):
                await told(client, f"Message {number}.")
            await client.send("response.create", response={"output_modalities": ["text"]})
            return (await client.until("response.done"))["response"]

    response = asyncio.run(talk())
    if behave == "refuse":
        assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", code)
    else:
        assert response["status"] == "completed"
    if behave == "full":
        assert [each["content"] for each in chat.asked[-1]["messages"]] == ["Message 3.", "Message 4."]


def test_of_an_answer_only_what_was_heard_is_remembered(session: Any, chat: Any) -> None:
    async def talk() -> Client:
        async with session() as client:
            await told(client)
            await client.send("response.create")
            item = (await client.until("response.done"))["response"]["output"][0]["id"]
            await client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=10**6)
            assert (await client.until("error"))["error"]["param"] == "audio_end_ms"
            await client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=1)
            await client.until("conversation.item.truncated")
            await client.send("conversation.item.retrieve", item_id=item)
            assert (await client.until("conversation.item.retrieved"))["item"]["content"][0]["transcript"] == ""
            await client.send("conversation.item.delete", item_id=item)
            await client.until("conversation.item.deleted")
            return client

    asyncio.run(talk())


# ---- what is wrong


AUDIO = base64.b64encode(bytes(4800)).decode()
WRONG = [
    ("not json", None, "invalid_json"),
    ("[1, 2]", None, "invalid_value"),
    ("{}", "type", "missing_required_parameter"),
    ({"type": "session.destroy"}, "type", "invalid_event_type"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing_required_parameter"),
    ({"type": "input_audio_buffer.append", "audio": "not base64!"}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.append", "audio": base64.b64encode(b"odd").decode()}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.append", "audio": 7}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.append", "audio": AUDIO, "pitch": 1}, "pitch", "unknown_parameter"),
    ({"type": "input_audio_buffer.commit"}, None, "input_audio_buffer_commit_empty"),
    ({"type": "response.cancel"}, "response_id", "response_cancel_not_active"),
    ({"type": "response.create", "response": {"tools": []}}, "response.tools", "unknown_parameter"),
    (
        {"type": "response.create", "response": {"audio": {"output": {"voice": "nobody"}}}},
        "response.audio.output.voice",
        "invalid_value",
    ),
    ({"type": "session.update", "session": {"type": "transcription"}}, "session.type", "invalid_value"),
    ({"type": "session.update", "session": {"tools": []}}, "session.tools", "unknown_parameter"),
    (
        {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"threshold": 2}}}}},
        "session.audio.input.turn_detection.threshold",
        "invalid_value",
    ),
    (
        {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}},
        "session.audio.input.format.type",
        "invalid_value",
    ),
    (
        {"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "whisper-1"}}}}},
        "session.audio.input.transcription.model",
        "model_not_found",
    ),
    ({"type": "conversation.item.delete", "item_id": "item_1"}, "item_id", "not_found"),
    ({"type": "conversation.item.create", "item": message("x") | {"role": "robot"}}, "item.role", "invalid_value"),
    (
        {"type": "conversation.item.create", "item": message("x"), "previous_item_id": "item_1"},
        "previous_item_id",
        "not_found",
    ),
]


def test_what_is_wrong_with_an_event_is_named_and_disturbs_nothing(session: Any, melody: Any) -> None:
    async def talk() -> None:
        async with session() as client, session("?intent=transcription") as other:
            await client.send("session.update", session=MANUAL)
            settings = (await client.until("session.updated"))["session"]
            await other.send("session.update", session=MANUAL)
            await other.append(spoken(melody, 1.0))
            for number, (event, param, code) in enumerate(WRONG):
                frame = json.dumps({**event, "event_id": f"e{number}"}) if isinstance(event, dict) else event
                await client.line.send(frame)
                error = (await client.until("error"))["error"]
                assert (error["param"], error["code"]) == (param, code), (event, error)
                assert error["event_id"] == (f"e{number}" if isinstance(event, dict) else None)
                assert param is None or param in error["message"]
            await client.send("session.update", session={})
            assert (await client.until("session.updated"))["session"] == settings
            await other.send("input_audio_buffer.commit")
            await other.until(f"{NAME}.completed")

    asyncio.run(talk())


def test_frames_in_a_wrong_order_are_refused_one_by_one(session: Any, melody: Any) -> None:
    async def talk() -> None:
        async with session("?intent=transcription") as client:
            await client.send("session.update", session=MANUAL)
            await client.until("session.updated")
            for kind in ("input_audio_buffer.commit", "response.create", "response.cancel"):
                await client.send(kind, event_id=kind)
                assert (await client.until("error"))["error"]["event_id"] == kind
            await client.append(spoken(melody, 1.0))
            await client.send("input_audio_buffer.clear")
            await client.until("input_audio_buffer.cleared")
            await client.send("input_audio_buffer.commit")
            assert (await client.until("error"))["error"]["code"] == "input_audio_buffer_commit_empty"
            await client.append(spoken(melody, 1.0))
            await client.send("input_audio_buffer.commit")
            await client.until(f"{NAME}.completed")

    asyncio.run(talk())


def test_a_language_that_the_model_lacks_fails_its_message_alone(session: Any, melody: Any) -> None:
    async def talk() -> None:
        async with session("?intent=transcription") as client:
            language = {"transcription": {"language": "xx"}, "turn_detection": None}
            await client.send("session.update", session={"audio": {"input": language}})
            await client.append(spoken(melody, 1.0))
            await client.send("input_audio_buffer.commit")
            assert (await client.until(f"{NAME}.failed"))["error"]["param"] == "language"
            await client.send("session.update", session={"audio": {"input": {"transcription": {"language": None}}}})
            await client.append(spoken(melody, 1.0))
            await client.send("input_audio_buffer.commit")
            await client.until(f"{NAME}.completed")

    asyncio.run(talk())


def test_a_large_event_is_refused_and_a_huge_one_ends_the_connection(session: Any) -> None:
    async def talk() -> None:
        async with session("?intent=transcription") as client:
            await client.line.send("x" * (15 * 1024 * 1024 + 1))
            assert (await client.until("error"))["error"]["code"] == "event_too_large"
            too_long = base64.b64encode(bytes(10 * 1024 * 1024)).decode()
            await client.send("session.update", session=MANUAL)
            await client.until("session.updated")
            await client.send("input_audio_buffer.append", audio=too_long)
            await client.send("input_audio_buffer.append", audio=too_long, event_id="too much")
            assert (await client.until("error"))["error"]["code"] == "input_audio_buffer_full"
            with contextlib.suppress(ConnectionClosed):  # it may be closed while this is still being sent
                await client.line.send("x" * (17 * 1024 * 1024))
            with pytest.raises(ConnectionClosed) as closed:
                await client.line.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009

    asyncio.run(talk())


def test_one_session_too_many_is_told_when_to_come_back(service: Any, session: Any) -> None:
    async def talk() -> dict[str, Any]:
        url = f"{service.url.replace('http', 'ws')}/v1/realtime"
        async with session(), session(), session(), connect(url) as line:
            refused = json.loads(await line.recv())
            with pytest.raises(ConnectionClosed) as closed:
                await line.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        async with session():
            return refused["error"]

    error = asyncio.run(talk())
    assert error["code"] == "overloaded"
    assert re.search(r"3 live sessions are open.* try again in about \d+ s", error["message"])


def test_a_foreign_page_is_refused(service: Any) -> None:
    async def talk() -> int:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{service.url.replace('http', 'ws')}/v1/realtime", origin="https://evil.example")
        return refused.value.response.status_code

    assert asyncio.run(talk()) == 403


def test_an_unknown_intent_is_refused(service: Any) -> None:
    async def talk() -> dict[str, Any]:
        async with connect(f"{service.url.replace('http', 'ws')}/v1/realtime?intent=sing") as line:
            event = json.loads(await line.recv())
            with pytest.raises(ConnectionClosed):
                await line.recv()
            return event

    assert asyncio.run(talk())["error"]["param"] == "intent"
