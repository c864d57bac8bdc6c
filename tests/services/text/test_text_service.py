"""The text service as OpenAI's SDK and as plain HTTP see it."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import os
import signal
import struct
import threading
from pathlib import Path

import httpx
import openai
import pytest
from tests.waiting import until

MODEL = "tiny-text"
HELLO = [{"role": "user", "content": "Hello"}]


def post(text, path: str, **body) -> httpx.Response:
    return httpx.post(f"{text.url}{path}", json=body, timeout=60)


def reference_text(directory, prompt: str, count: int) -> str:
    """Transformers' own greedy continuation."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :].tolist())


def test_the_model_is_listed_with_its_card(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.card["family"] == "LlamaForCausalLM"
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_answer_is_transformers_greedy_answer(client, tiny_text_model):
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content == reference_text(tiny_text_model, "user: Hello\nassistant:", 40)
    assert answer.usage.prompt_tokens == len("user: Hello\nassistant:")
    assert answer.choices[0].finish_reason in {"stop", "length"}


def test_a_stream_adds_up_to_the_whole_answer_and_counts_its_tokens(client, counted):
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, temperature=0, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert counted(chunks[-1].usage) == counted(whole.usage)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_the_same_seed_gives_the_same_text_beside_other_requests(client):
    def ask(seed: int) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, temperature=1.0, seed=seed, max_tokens=20, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].message.content

    alone = ask(5)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(ask, [5, 1, 2, 3, 5, 4, 6, 5]))
    assert beside[0] == beside[4] == beside[7] == alone
    assert len(set(beside)) > 1


def test_several_choices_differ_and_come_back_with_a_seed(client):
    def ask() -> list[str]:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, temperature=1.0, seed=9, n=3, max_tokens=12, extra_body={"ignore_eos": True}
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens == 36
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_a_stop_string_across_tokens_ends_the_answer_before_it(client):
    whole = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=30).choices[0].text
    stop = whole[5:8]
    cut = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=30, stop=[stop]).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_logprobs_have_openais_shape(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert token.logprob <= 0
        assert token.top_logprobs[0].logprob == token.logprob  # greedy: the sampled one is the likeliest
        assert token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob


def test_completions_take_text_tokens_and_batches(client):
    single = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5).choices[0].text
    batch = client.completions.create(model=MODEL, prompt=["abc", "xyz"], temperature=0, max_tokens=5)
    assert [choice.index for choice in batch.choices] == [0, 1]
    assert batch.choices[0].text == single
    echoed = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5, echo=True)
    assert echoed.choices[0].text == "abc" + single
    streamed = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == single


def test_embeddings_are_unit_vectors_in_both_encodings(client, text):
    vector = client.embeddings.create(model=MODEL, input="Hello", encoding_format="float").data[0].embedding
    assert sum(value * value for value in vector) == pytest.approx(1.0, abs=1e-4)
    packed = post(text, "/v1/embeddings", model=MODEL, input="Hello", encoding_format="base64").json()
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack(f"<{len(vector)}f", raw) == pytest.approx(vector, abs=1e-5)
    many = client.embeddings.create(model=MODEL, input=["Hello", "Bye"], dimensions=8)
    assert [len(item.embedding) for item in many.data] == [8, 8]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("chat/completions", {"model": "nope", "messages": HELLO}, 404, "model", "there are: tiny-text"),
        ("chat/completions", {"model": MODEL}, 400, "messages", "required"),
        ("chat/completions", {"model": MODEL, "messages": []}, 400, "messages", "length"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "top_kk": 1}, 400, "top_kk", "not a parameter"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "functions": []}, 400, "functions", "`tools`"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "temperature": 3}, 400, "temperature", "<= 2"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "max_tokens": 0}, 400, "max_tokens", ">= 1"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "n": 17}, 400, "n", "at most 16"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "stop": ["x"] * 10_000}, 400, "stop", "length"),
        ("chat/completions", {"model": MODEL, "messages": HELLO, "top_logprobs": 2}, 400, "top_logprobs", "needs"),
        (
            "chat/completions",
            {"model": MODEL, "messages": HELLO, "logit_bias": {"x": 1}},
            400,
            "logit_bias",
            "not a token id",
        ),
        (
            "chat/completions",
            {"model": MODEL, "messages": [{"role": "user", "content": "x" * 5000}]},
            400,
            "messages",
            "5017 tokens",
        ),
        (
            "chat/completions",
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
            },
            400,
            "messages[0].content[0]",
            "reads only text",
        ),
        ("completions", {"model": MODEL, "prompt": ["a", 1]}, 400, "prompt", "only"),
        ("completions", {"model": MODEL, "prompt": [99999]}, 400, "prompt", "vocabulary"),
        ("embeddings", {"model": MODEL, "input": ""}, 400, "input", "empty"),
        ("embeddings", {"model": MODEL, "input": "x", "dimensions": 4000}, 400, "dimensions", "has 32"),
    ],
)
def test_bad_requests_name_the_field_and_the_limit(text, path, body, status, param, words):
    answer = post(text, f"/v1/{path}", **body)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert error["param"] == param
    assert words in error["message"]


def test_a_stream_that_cannot_start_has_its_own_status(text):
    answer = post(text, "/v1/completions", model=MODEL, prompt=[99999], stream=True)
    assert answer.status_code == 400


def metric(text, name: str) -> float:
    page = httpx.get(f"{text.url}/metrics").text
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + " ")), -1.0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(text, stream):
    body = {"model": MODEL, "prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    before = metric(text, "tessera_text_engine_sampled_tokens_total")
    if stream:
        with httpx.stream("POST", f"{text.url}/v1/completions", json=body, timeout=60) as answer:
            next(answer.iter_bytes())
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{text.url}/v1/completions", json=body, timeout=0.5)
    until(lambda: metric(text, "tessera_text_engine_requests_running") == 0)
    assert metric(text, "tessera_text_engine_kv_pages_used") == 0
    assert metric(text, "tessera_text_engine_sampled_tokens_total") < before + 4000


def test_an_engine_killed_mid_stream_is_told_and_comes_back(text, client):
    def stream():
        return client.completions.create(
            model=MODEL, prompt="abc", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )

    chunks = iter(stream())
    next(chunks)
    waiting: list[str] = []
    os.kill(text.engine_pid(), signal.SIGKILL)
    with pytest.raises(openai.APIError, match="died while it worked on this request"):
        for _ in chunks:
            pass
    asked = threading.Thread(
        target=lambda: waiting.append(
            client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5).choices[0].text
        )
    )
    asked.start()
    asked.join(60)
    text.wait_ready()
    assert waiting == [
        client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5).choices[0].text
    ]


def test_the_service_itself_never_loads_torch(text):
    maps = Path(f"/proc/{text.process.pid}/maps").read_text()
    assert "libtorch" not in maps


def test_health_metrics_and_the_api_description_are_there(text):
    assert httpx.get(f"{text.url}/health").json()["service"] == "text"
    assert "tessera_http_requests_total" in httpx.get(f"{text.url}/metrics").text
    page = httpx.get(f"{text.url}/docs").text
    assert "://cdn" not in page
    schema = json.loads(httpx.get(f"{text.url}/docs/openapi.json").text)
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rsplit("/", 1)[1]
    assert "temperature" in schema["components"]["schemas"][name]["properties"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "top_k": 2**63}, "top_k"),
        ({"prompt": "x", "top_k": 2**65}, "top_k"),
        ({"prompt": [2**65]}, "prompt"),
        ({"prompt": [[2**65]]}, "prompt"),
        ({"prompt": "x", "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"prompt": "x", "logit_bias": {str(2**65): 1}}, "logit_bias"),
        ({"prompt": "x", "repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "x" * 1_000_000}, "prompt"),
    ],
)
def test_numbers_and_texts_of_absurd_size_are_refused_by_name(text, body, param):
    answer = post(text, "/v1/completions", model=MODEL, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


def test_a_batch_of_prompts_and_choices_larger_than_the_queue_is_answered_whole(client):
    answer = client.completions.create(model=MODEL, prompt=["ab"] * 100, n=4, temperature=0, max_tokens=2)
    assert [choice.index for choice in answer.choices] == list(range(400))
    assert len({choice.text for choice in answer.choices}) == 1


def test_a_batch_with_one_wrong_prompt_leaves_nothing_running(text):
    body = {"prompt": [*([5] for _ in range(20)), [99999]], "max_tokens": 3000, "ignore_eos": True}
    answer = post(text, "/v1/completions", model=MODEL, **body)
    assert answer.status_code == 400
    until(lambda: metric(text, "tessera_text_engine_requests_running") == 0, 5)


def test_a_client_that_leaves_before_its_stream_begins_leaves_the_queue(start_service, tiny_text_model):
    settings = {"text__model": str(tiny_text_model), "text__engine__threads": "1", "text__engine__max_running": "1"}
    with start_service("text", **settings) as service:
        body = {"model": MODEL, "prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as first:
            pieces = first.iter_bytes()
            next(pieces)
            with (
                pytest.raises(httpx.ReadTimeout),
                httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=0.5),
            ):
                pass
            until(lambda: metric(service, "tessera_text_engine_requests_waiting") == 0, 3)
            assert metric(service, "tessera_text_engine_requests_running") == 1


def test_a_message_cannot_speak_for_another_role(client, text):
    def prompt_tokens(content: str) -> int:
        messages = [{"role": "user", "content": content, "name": "Ada"}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        return answer.usage.prompt_tokens

    assert prompt_tokens("a</s>b") == prompt_tokens("a....b")
