"""Ollama's API at the gateway, over a scripted server that speaks OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.services.gateway.chat_upstreams import ChatUpstream, chunk, whole

USED = {"prompt_tokens": 7, "completion_tokens": 3}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
ANSWER = [chunk(content="Hel"), chunk(content="lo."), chunk(finish="stop"), {"choices": [], "usage": USED}]


@pytest.fixture
def foreign() -> Iterator[Callable[..., ChatUpstream]]:
    made: list[ChatUpstream] = []

    def make(*models: str, name: str = "foreign") -> ChatUpstream:
        made.append(ChatUpstream(*(models or ("m",)), name=name).start())
        return made[-1]

    yield make
    for one in made:
        one.close()


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def check_end(last: dict[str, Any], reason: str = "stop") -> None:
    assert (last["done"], last["done_reason"]) == (True, reason)
    assert (last["prompt_eval_count"], last["eval_count"], last["load_duration"]) == (7, 3, 0)
    assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0


def test_a_chat_streams_lines_unless_it_says_no(gateway, foreign):
    fake = foreign()
    fake.reply = ANSWER
    running = gateway(fake)
    lines = lines_of(httpx.post(running.url + "/api/chat", json=ASKED))
    assert [line["message"]["content"] for line in lines] == ["Hel", "lo.", ""]
    assert [line["done"] for line in lines] == [False, False, True]
    check_end(lines[-1])
    answer = httpx.post(running.url + "/api/chat", json={**ASKED, "stream": False})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["message"] == {"role": "assistant", "content": "Hello."}
    check_end(answer.json())
    assert fake.requests[-1][2] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_calls_are_shown_whole_with_their_arguments_as_an_object(gateway, foreign):
    fake = foreign()
    first = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a"'}}
    fake.reply = [
        chunk(reasoning_content="Hm."),
        chunk(tool_calls=[first]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
        chunk(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "g", "arguments": ""}}]),
        chunk(finish="tool_calls"),
        {"choices": [], "usage": USED},
    ]
    running = gateway(fake)
    lines = lines_of(httpx.post(running.url + "/api/chat", json=ASKED))
    assert lines[0]["message"]["thinking"] == "Hm."
    calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("f", {"a": 1}), ("g", {})]
    check_end(lines[-1])
    assert (
        httpx.post(running.url + "/api/chat", json={**ASKED, "stream": False}).json()["message"]["tool_calls"] == calls
    )


def test_generate_answers_with_response_and_raw_prompts_have_no_template(gateway, foreign):
    fake = foreign()
    fake.reply = ANSWER
    running = gateway(fake)
    lines = lines_of(httpx.post(running.url + "/api/generate", json={"model": "m", "prompt": "Hi", "system": "S"}))
    assert "".join(line["response"] for line in lines) == "Hello."
    fake.reply = [
        {"choices": [{"index": 0, "text": "raw", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
        {"choices": [], "usage": USED},
    ]
    asked = {"model": "m", "prompt": "Once", "raw": True, "stream": False, "options": {"num_predict": 4}}
    answer = httpx.post(running.url + "/api/generate", json=asked).json()
    assert answer["response"] == "raw"
    check_end(answer, "length")
    path, _, sent = fake.requests[-1]
    assert (path, sent["prompt"], sent["max_tokens"]) == ("/v1/completions", "Once", 4)
    assert "messages" not in sent
    httpx.post(running.url + "/api/generate", json={"model": "m", "prompt": "a", "suffix": "z", "stream": False})
    assert fake.requests[-1][2]["suffix"] == "z"


def test_the_body_of_curl_without_a_content_type_is_read(gateway, foreign):
    fake = foreign()
    fake.reply = ANSWER
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = httpx.post(gateway(fake).url + "/api/chat", content=json.dumps(ASKED), headers=headers)
    assert lines_of(answer)[-1]["done"]


def test_a_request_without_a_prompt_loads_the_model(gateway, foreign):
    running = gateway(foreign())
    for path in ("/api/chat", "/api/generate"):
        answer = httpx.post(running.url + path, json={"model": "m", "keep_alive": -1}).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
        assert httpx.post(running.url + path, json={"model": "none"}).status_code == 404


def test_names_are_found_with_the_tag_latest(gateway, foreign):
    fake = foreign("m", "n:1b")
    fake.reply = ANSWER
    running = gateway(fake)
    for name in ("m", "m:latest", "n:1b"):
        assert lines_of(httpx.post(running.url + "/api/chat", json={**ASKED, "model": name}))[-1]["done"]
    listed = httpx.get(running.url + "/api/tags").json()["models"]
    assert {"m:latest", "n:1b"} <= {model["name"] for model in listed}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ([chunk(content="a"), RuntimeError("cut")], "cut the connection"),
        ([chunk(content="a"), {"error": {"message": "out of memory"}}], "out of memory"),
        ([chunk(content="a")], "before it was complete"),
    ],
    ids=["cut", "error event", "no end"],
)
def test_a_failure_within_a_stream_ends_it_with_an_error_line(gateway, foreign, broken, words):
    fake = foreign()
    fake.reply = broken
    running = gateway(fake)
    lines = lines_of(httpx.post(running.url + "/api/chat", json=ASKED))
    assert lines[0]["message"]["content"] == "a"
    assert words in lines[-1]["error"]
    whole_answer = httpx.post(running.url + "/api/chat", json={**ASKED, "stream": False})
    assert whole_answer.status_code == 502
    assert words in whole_answer.json()["error"]


def test_a_client_that_leaves_cancels_the_upstream(gateway, foreign, wait):
    fake = foreign()
    fake.reply = [chunk(content="a"), ...]
    running = gateway(fake)
    with httpx.stream("POST", running.url + "/api/chat", json=ASKED) as answer:
        next(answer.iter_raw())
        assert fake.began.wait(5)
    assert fake.left.wait(5)
    wait(lambda: running.metric("tessera_gateway_upstream_in_flight", upstream="foreign") == 0, "the upstream's end")


def test_vectors_come_in_the_order_of_their_texts(gateway, foreign):
    fake = foreign()
    fake.reply = {"data": [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}], "usage": USED}
    running = gateway(fake)
    answer = httpx.post(running.url + "/api/embed", json={"model": "m", "input": ["a", "b"], "truncate": True}).json()
    assert (answer["embeddings"], answer["prompt_eval_count"]) == ([[1.0], [2.0]], 7)
    assert fake.requests[-1][2] == {"model": "m", "input": ["a", "b"], "encoding_format": "float"}
    fake.reply = {"data": [{"embedding": [3]}]}
    old = httpx.post(running.url + "/api/embeddings", json={"model": "m", "prompt": "a"})
    assert old.json() == {"embedding": [3.0]}
    fake.reply = {"data": []}
    assert httpx.post(running.url + "/api/embed", json={"model": "m", "input": "a"}).status_code == 502
    fake.status, fake.reply = 400, {"error": {"message": "too long"}}
    refused = httpx.post(running.url + "/api/embed", json={"model": "m", "input": "a"})
    assert (refused.status_code, refused.json()) == (400, {"error": "too long"})


@pytest.mark.parametrize(
    ("maker", "field"),
    [("ours", {"truncate": True}), ("vllm", {"truncate_prompt_tokens": -1}), ("other", {})],
)
def test_texts_that_are_too_long_are_cut_unless_the_request_says_no(gateway, foreign, maker, field):
    fake = foreign()
    fake.owned_by = maker
    fake.reply = {"data": [{"embedding": [1]}]}
    running = gateway(fake).knows("m")
    running.collaborator("upstreams").all[0].ours = maker == "ours"
    for truncate, sent in (({}, field), ({"truncate": True}, field), ({"truncate": False}, {})):
        answer = httpx.post(running.url + "/api/embed", json={"model": "m", "input": "a", **truncate})
        assert answer.status_code == 200
        assert fake.requests[-1][2] == {"model": "m", "input": ["a"], "encoding_format": "float", **sent}


def test_models_are_described(gateway, upstream, model):
    running = gateway(upstream(model("small", "chat", "vision"), model("voice", "speech")), aliases={})
    (listed,) = httpx.get(running.url + "/api/tags").json()["models"]
    assert (listed["model"], listed["details"]["family"]) == ("small:latest", "Fake")
    assert len(listed["digest"]) == 64
    shown = httpx.post(running.url + "/api/show", json={"model": "small:latest"}).json()
    assert shown["capabilities"] == ["completion", "tools", "vision"]
    assert shown["model_info"]["general.architecture"] == "fake"
    assert httpx.post(running.url + "/api/show", json={"name": "small"}).status_code == 200
    (loaded,) = httpx.get(running.url + "/api/ps").json()["models"]
    assert loaded["expires_at"].startswith("9999")
    assert httpx.get(running.url + "/api/version").json()["version"].count(".") == 2


def test_models_are_the_operators(gateway, foreign):
    running = gateway(foreign())
    pulled = httpx.post(running.url + "/api/pull", json={"model": "m"})
    assert lines_of(pulled) == [{"status": "success"}]
    assert httpx.post(running.url + "/api/pull", json={"model": "m", "stream": False}).json()["status"] == "success"
    for method, path in (
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:0"),
        ("POST", "/api/pull"),
    ):
        answer = httpx.request(method, running.url + path, json={"model": "other"})
        assert answer.status_code == 403, path
        assert "/api/tags" in answer.json()["error"]


def test_errors_are_one_text_and_keys_apply(gateway, foreign):
    running = gateway(foreign(), api_keys=["k"])
    key = {"authorization": "Bearer k"}
    for path in ("/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/pull", "/api/delete"):
        answer = httpx.post(running.url + path, json=ASKED)
        assert answer.status_code in {401, 405}, path
        assert list(answer.json()) == ["error"], path
        assert isinstance(answer.json()["error"], str)
    assert httpx.get(running.url + "/api/tags").status_code == 401
    shiny = httpx.post(running.url + "/api/chat", json={**ASKED, "shiny": 1}, headers=key)
    assert (shiny.status_code, "shiny" in shiny.json()["error"]) == (400, True)
    missing = httpx.post(running.url + "/api/chat", json={**ASKED, "model": "none"}, headers=key)
    assert missing.status_code == 404


def test_an_upstream_that_does_not_stream_is_understood(gateway, foreign):
    fake = foreign()
    fake.reply = {**whole(content="Hello."), "usage": USED}
    lines = lines_of(httpx.post(gateway(fake).url + "/api/chat", json=ASKED))
    assert lines[0]["message"]["content"] == "Hello."
    check_end(lines[-1])
