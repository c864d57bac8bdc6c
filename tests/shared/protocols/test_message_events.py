"""Events of Anthropic's messages: an independent reader accepts every stream, and reads what the whole answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec import json as encoded

from tessera.errors import BadGatewayError, OverloadedError, RateLimitError, UnavailableError
from tessera.protocols.messages.errors import messages_shape
from tessera.protocols.messages.translation import MessageTranslation
from tessera.wire.chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Delta,
    PromptTokensDetails,
    Usage,
)
from tessera.wire.decoding import decode_json
from tessera.wire.messages import MessagesRequest
from tessera.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta

USED = Usage(
    prompt_tokens=10, completion_tokens=5, total_tokens=15, prompt_tokens_details=PromptTokensDetails(cached_tokens=4)
)


def translation(**fields: Any) -> MessageTranslation:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return MessageTranslation(decode_json(json.dumps(body).encode(), MessagesRequest))


def chunk(delta: Delta | None = None, **fields: Any) -> ChatCompletionChunk:
    choices = [] if delta is None else [ChatChunkChoice(index=0, delta=delta, **fields)]
    return ChatCompletionChunk(id="c", created=1, model="m", choices=choices, usage=USED if delta is None else UNSET)


def called(index: int, text: str, **first: str) -> Delta:
    function = FunctionDelta(name=first.get("name", UNSET), arguments=text)
    return Delta(tool_calls=[ToolCallDelta(index=index, function=function, id=first.get("id", UNSET))])


def streamed(translator: MessageTranslation, chunks: list[ChatCompletionChunk]) -> bytes:
    pieces = translator.begin()
    for each in chunks:
        pieces += translator.chunk(each)
    return b"".join([*pieces, *translator.end()])


class Reader:
    """Reads a stream as a strict client does; knows nothing of the code that makes it."""

    def __init__(self, stream: bytes) -> None:
        self.names: list[str] = []
        self.message: dict[str, Any] = {}
        self._inputs: dict[int, str] = {}
        self._open: int | None = None
        for block in stream.decode().split("\n\n")[:-1]:
            head, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert head == f"event: {event['type']}"
            self.names.append(event["type"])
            getattr(self, event["type"])(event)
        assert self.names[-1] == "message_stop"

    def message_start(self, event: dict[str, Any]) -> None:
        assert not self.message
        self.message = event["message"]
        assert (self.message["content"], self.message["stop_reason"]) == ([], None)

    def ping(self, _: dict[str, Any]) -> None:
        pass

    def content_block_start(self, event: dict[str, Any]) -> None:
        assert self._open is None
        self._open = event["index"]
        assert event["index"] == len(self.message["content"])
        self.message["content"].append(event["content_block"])
        self._inputs[event["index"]] = ""

    def content_block_delta(self, event: dict[str, Any]) -> None:
        assert event["index"] == self._open
        block, delta = self.message["content"][event["index"]], event["delta"]
        field, kind = {
            "text_delta": ("text", "text"),
            "thinking_delta": ("thinking", "thinking"),
            "signature_delta": ("signature", "thinking"),
            "input_json_delta": ("partial_json", "tool_use"),
        }[delta["type"]]
        assert block["type"] == kind
        if kind == "tool_use":
            self._inputs[event["index"]] += delta[field]
        else:
            block[field] += delta[field]

    def content_block_stop(self, event: dict[str, Any]) -> None:
        assert event["index"] == self._open
        block = self.message["content"][event["index"]]
        if block["type"] == "tool_use":
            block["input"] = json.loads(self._inputs[event["index"]] or "{}")
        self._open = None

    def message_delta(self, event: dict[str, Any]) -> None:
        assert self._open is None
        self.message |= event["delta"]
        self.message["usage"] = event["usage"]

    def message_stop(self, _: dict[str, Any]) -> None:
        assert self.message["stop_reason"] is not None


def test_the_order_of_events_is_anthropics() -> None:
    chunks = [
        chunk(Delta(role="assistant")),
        chunk(Delta(reasoning_content="I think.")),
        chunk(Delta(content="So")),
        chunk(Delta(content=" it is.")),
        chunk(called(0, "", name="f", id="call1")),
        chunk(called(0, '{"a":')),
        chunk(called(0, " 1}")),
        chunk(called(1, "{}", name="g", id="call2")),
        chunk(Delta(), finish_reason="tool_calls"),
        chunk(),
    ]
    reader = Reader(streamed(translation(stream=True), chunks))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert reader.names == [
        "message_start",
        "ping",
        *[block[0], block[1], block[1], block[2]],  # the thought, with its signature
        *[block[0], block[1], block[1], block[2]],
        *[block[0], block[1], block[1], block[2]],
        *block,
        "message_delta",
        "message_stop",
    ]
    assert reader.message["content"] == [
        {"type": "thinking", "thinking": "I think.", "signature": "tessera-unsigned"},
        {"type": "text", "text": "So it is."},
        {"type": "tool_use", "id": "call1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "call2", "name": "g", "input": {}},
    ]
    assert reader.message["stop_reason"] == "tool_use"
    assert reader.message["usage"] == {
        "input_tokens": 6,
        "output_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
    }


TEXTS = st.lists(st.text(max_size=5), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    thoughts=TEXTS,
    texts=TEXTS,
    calls=st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2), max_size=3),
    cut=st.integers(1, 7),
)
def test_a_stream_reads_as_the_whole_answer(thoughts: Any, texts: Any, calls: Any, cut: int) -> None:
    chunks = [chunk(Delta(role="assistant", content=""))]
    chunks += [chunk(Delta(reasoning_content=text)) for text in thoughts]
    chunks += [chunk(Delta(content=text)) for text in texts]
    for index, arguments in enumerate(calls):
        text = json.dumps(arguments)
        chunks.append(chunk(called(index, "", name=f"f{index}", id=f"id{index}")))
        chunks += [chunk(called(index, text[at : at + cut])) for at in range(0, len(text), cut)]
    reason = "tool_calls" if calls else "stop"
    chunks += [chunk(Delta(), finish_reason=reason), chunk()]
    made = [
        ToolCall(id=f"id{index}", function=CalledFunction(name=f"f{index}", arguments=json.dumps(arguments)))
        for index, arguments in enumerate(calls)
    ]
    thought = "".join(thoughts)
    message = AnswerMessage(
        content="".join(texts) or None, reasoning_content=thought or UNSET, tool_calls=made or UNSET
    )
    choice = ChatChoice(index=0, message=message, finish_reason=reason)  # type: ignore[arg-type]
    completion = ChatCompletion(id="c", created=1, model="m", choices=[choice], usage=USED)
    whole = json.loads(encoded.encode(translation().answer(completion)))
    read = Reader(streamed(translation(stream=True), chunks)).message
    assert {**read, "id": ""} == {**whole, "id": ""}


def test_a_stop_sequence_is_named_whole_and_streamed() -> None:
    last = chunk(Delta(), finish_reason="stop", stop_reason="END")
    read = Reader(streamed(translation(stream=True), [chunk(Delta(content="a")), last, chunk()])).message
    assert (read["stop_reason"], read["stop_sequence"]) == ("stop_sequence", "END")
    choice = ChatChoice(index=0, message=AnswerMessage(content="a"), finish_reason="stop", stop_reason="END")
    whole = translation().answer(ChatCompletion(id="c", created=1, model="m", choices=[choice], usage=USED))
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "END")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_calls", "tool_use"), ("content_filter", "refusal")],
)
def test_reasons(reason: Any, expected: str) -> None:
    read = Reader(streamed(translation(stream=True), [chunk(Delta(content="a"), finish_reason=reason)])).message
    assert read["stop_reason"] == expected


def test_omitted_thoughts_are_signed_and_empty() -> None:
    chunks = [chunk(Delta(reasoning_content="secret")), chunk(Delta(content="a"), finish_reason="stop")]
    asked = {"thinking": {"type": "adaptive", "display": "omitted"}, "stream": True}
    stream = streamed(translation(**asked), chunks)
    assert b"secret" not in stream
    assert Reader(stream).message["content"][0] == {
        "type": "thinking",
        "thinking": "",
        "signature": "tessera-unsigned",
    }


def test_a_call_that_was_cut_is_left_out_and_a_broken_one_is_shown_as_it_is() -> None:
    def answer(reason: Any) -> Any:
        broken = ToolCall(id="i", function=CalledFunction(name="f", arguments='{"a": '))
        choice = ChatChoice(index=0, message=AnswerMessage(content=None, tool_calls=[broken]), finish_reason=reason)
        return translation().answer(ChatCompletion(id="c", created=1, model="m", choices=[choice], usage=USED))

    assert answer("length").content == []
    assert answer("tool_calls").content[0].input == {"invalid_arguments": '{"a": '}


def test_a_stream_without_an_end_is_the_upstreams_fault() -> None:
    translator = translation(stream=True)
    translator.chunk(chunk(Delta(content="a")))
    with pytest.raises(BadGatewayError, match="before it was complete"):
        translator.end()
    (last,) = translator.failed(BadGatewayError("x"))
    assert last.startswith(b"event: error\n")
    assert json.loads(last.split(b"data: ")[1])["error"] == {"type": "api_error", "message": "x"}


def test_a_call_that_goes_on_after_its_end_is_the_upstreams_fault() -> None:
    translator = translation(stream=True)
    translator.chunk(chunk(called(0, "{", name="f", id="a")))
    translator.chunk(chunk(called(1, "{", name="g", id="b")))
    with pytest.raises(BadGatewayError):
        translator.chunk(chunk(called(0, "}")))


def test_errors_have_anthropics_types_and_statuses() -> None:
    for error, status, kind in (
        (OverloadedError("x"), 529, "overloaded_error"),
        (RateLimitError("x"), 429, "rate_limit_error"),
        (UnavailableError("x"), 503, "api_error"),
    ):
        reply = messages_shape.reply(error)
        body = json.loads(reply.body)
        assert (reply.status, body["type"], body["error"]["type"]) == (status, "error", kind)
