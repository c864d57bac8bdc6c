"""What vLLM's and SGLang's users send, on the text service: each parameter does what its name says."""

from __future__ import annotations

import json
import re

import httpx
import pytest

MODEL = "tiny-text"
HELLO = [{"role": "user", "content": "Hello"}]
END = 257


def post(text, path: str, **body) -> httpx.Response:
    return httpx.post(f"{text.url}{path}", json={"model": MODEL, **body}, timeout=120)


def chat(text, **body) -> dict:
    answer = post(text, "/v1/chat/completions", **({"messages": HELLO, "temperature": 0, "max_tokens": 12} | body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def complete(text, **body) -> dict:
    answer = post(text, "/v1/completions", **({"prompt": "abc", "temperature": 0, "max_tokens": 12} | body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(text, path: str = "/v1/completions", **body) -> list[dict]:
    fields = {"prompt": "abc"} if path == "/v1/completions" else {"messages": HELLO}
    answer = post(text, path, **({"temperature": 0, "max_tokens": 12, "stream": True} | fields | body))
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def assert_same_scores(scores: dict, others: dict) -> None:
    """Check that two prompts were scored alike, in steps of other rows: float32 adds those up in another order."""
    assert {key: scores[key] for key in ("tokens", "text_offset")} == {
        key: others[key] for key in ("tokens", "text_offset")
    }
    for one, other in zip(scores["top_logprobs"], others["top_logprobs"], strict=True):
        assert one == (None if other is None else pytest.approx(other, rel=1e-5))
    assert scores["token_logprobs"][1:] == pytest.approx(others["token_logprobs"][1:], rel=1e-5)


def refused(text, param: str, path: str = "/v1/completions", **body) -> str:
    fields = {"prompt": "abc"} if path == "/v1/completions" else {"messages": HELLO}
    answer = post(text, path, **({"temperature": 0, "max_tokens": 12} | fields | body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    return answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def free(text) -> list[int]:
    """The tokens of the greedy answer that all tests begin from."""
    return complete(text, return_token_ids=True, ignore_eos=True)["choices"][0]["token_ids"]


def test_ids_of_prompt_and_answer_come_in_vllms_places(text, free):
    (one,) = complete(text, return_token_ids=True)["choices"]
    assert one["prompt_token_ids"] == post(text, "/tokenize", prompt="abc").json()["tokens"]
    assert one["token_ids"] == free
    events = streamed(text, return_token_ids=True, n=2)
    for index in (0, 1):
        own = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert own[0]["prompt_token_ids"] == one["prompt_token_ids"]
        assert all("prompt_token_ids" not in later for later in own[1:])
        assert [token for choice in own for token in choice["token_ids"]] == free
    whole = chat(text, return_token_ids=True)
    assert whole["prompt_token_ids"] == post(text, "/tokenize", messages=HELLO).json()["tokens"]
    parts = streamed(text, "/v1/chat/completions", return_token_ids=True)
    assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in part for part in parts[1:])
    ids = [token for part in parts for choice in part["choices"] for token in choice.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    assert "token_ids" not in complete(text)["choices"][0]


def test_an_answers_ids_have_the_token_that_ended_it(text, free):
    (one,) = complete(text, return_token_ids=True, stop_token_ids=[free[3]])["choices"]
    place = free.index(free[3])
    assert one["token_ids"] == free[: place + 1]
    assert (one["finish_reason"], one["stop_reason"]) == ("stop", free[3])
    assert one["text"] == complete(text, max_tokens=place)["choices"][0]["text"] if place else one["text"] == ""


def test_nothing_ends_an_answer_before_its_least_length(text, free):
    (one,) = complete(text, stop_token_ids=[free[1]], min_tokens=6, return_token_ids=True)["choices"]
    assert len(one["token_ids"]) > 6 or one["finish_reason"] == "length"
    assert free[1] not in one["token_ids"][:6]
    text_of = complete(text, return_token_ids=True)["choices"][0]["text"]
    (held,) = complete(text, stop=[text_of[1]], min_tokens=6, return_token_ids=True)["choices"]
    assert len(held["token_ids"]) > 6
    assert refused(text, "min_tokens", min_tokens=13)


def test_bad_words_do_not_come_and_the_only_tokens_do(text, free):
    word = complete(text)["choices"][0]["text"][2:4]
    (one,) = complete(text, bad_words=[word])["choices"]
    assert word not in one["text"]
    (few,) = complete(text, allowed_token_ids=[65, 66, 67], temperature=1, seed=3, return_token_ids=True)["choices"]
    assert set(few["token_ids"]) <= {65, 66, 67}
    assert refused(text, "allowed_token_ids", allowed_token_ids=[4000])
    assert refused(text, "bad_words[0]", bad_words=[""])


def test_a_ban_that_leaves_nothing_is_told_by_name_and_a_stream_ends_with_it(text):
    (letter,) = post(text, "/tokenize", prompt="a").json()["tokens"]
    message = refused(text, "allowed_token_ids", allowed_token_ids=[letter], bad_words=["aa"])
    assert "behind the 1 tokens" in message
    body = {"model": MODEL, "prompt": "abc", "allowed_token_ids": [letter], "bad_words": ["aa"], "stream": True}
    answer = httpx.post(f"{text.url}/v1/completions", json=body, timeout=60)
    last = json.loads(answer.text.split("data: ")[-1])
    assert last["error"]["param"] == "allowed_token_ids"


def test_stop_strings_are_shown_if_they_are_to_be_included(text):
    whole = complete(text)["choices"][0]["text"]
    stop = whole[4:6]
    place = whole.index(stop)
    for include, expected in ((False, whole[:place]), (True, whole[:place] + stop)):
        (one,) = complete(text, stop=stop, include_stop_str_in_output=include)["choices"]
        assert (one["text"], one["finish_reason"], one["stop_reason"]) == (expected, "stop", stop)
        events = streamed(text, stop=stop, include_stop_str_in_output=include)
        assert "".join(choice["text"] for event in events for choice in event["choices"]) == expected


def test_control_tokens_are_shown_if_they_are_not_to_be_skipped(text):
    bias = {str(256): 100}
    assert complete(text, logit_bias=bias, max_tokens=3)["choices"][0]["text"] == ""
    (one,) = complete(text, logit_bias=bias, max_tokens=3, skip_special_tokens=False)["choices"]
    assert one["text"] == "<s><s><s>"
    (ended,) = complete(text, logit_bias={str(END): 100}, skip_special_tokens=False, include_stop_str_in_output=True)[
        "choices"
    ]
    assert (ended["text"], ended["finish_reason"]) == ("</s>", "stop")


def test_a_prompt_is_cut_to_its_last_tokens(text):
    ids = complete(text, prompt="abcdefgh", truncate_prompt_tokens=3, return_token_ids=True)["choices"][0]
    assert ids["prompt_token_ids"] == post(text, "/tokenize", prompt="fgh").json()["tokens"]
    long = complete(text, prompt="x" * 5000, truncate_prompt_tokens=-1, return_token_ids=True)
    assert long["usage"]["prompt_tokens"] == 4096 - 12
    short = chat(text, truncate_prompt_tokens=4, return_token_ids=True)
    assert short["prompt_token_ids"] == post(text, "/tokenize", messages=HELLO).json()["tokens"][-4:]
    assert refused(text, "truncate_prompt_tokens", truncate_prompt_tokens=0)


def test_an_answer_goes_on_with_the_last_message(text):
    talk = [*HELLO, {"role": "assistant", "content": "so it "}]
    ids = chat(text, messages=talk, continue_final_message=True, add_generation_prompt=False, return_token_ids=True)[
        "prompt_token_ids"
    ]
    assert ids == post(text, "/tokenize", prompt="user: Hello\nassistant: so it ").json()["tokens"]
    same = post(text, "/tokenize", messages=talk, continue_final_message=True, add_generation_prompt=False)
    assert same.json()["tokens"] == ids
    both = {"messages": talk, "continue_final_message": True, "add_generation_prompt": True}
    assert refused(text, "add_generation_prompt", "/v1/chat/completions", **both)


def test_a_template_of_a_request_is_refused_with_the_name_of_its_setting(text):
    message = refused(text, "chat_template", "/v1/chat/completions", chat_template="{{ messages }}")
    assert "text.request_chat_templates" in message


@pytest.mark.slow
def test_a_template_of_a_request_writes_its_prompt_where_the_setting_allows_it(start_service, tiny_text_model):
    settings = {"text__model": str(tiny_text_model), "text__request_chat_templates": "true"}
    with start_service("text", **settings, text__engine__threads="1") as service:
        source = "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if loud %}!{% endif %}"
        body = {"chat_template": source, "chat_template_kwargs": {"loud": True}, "return_token_ids": True}
        ids = chat(service, **body)["prompt_token_ids"]
        assert ids == post(service, "/tokenize", prompt="[Hello]!").json()["tokens"]
        spelled = [{"role": "user", "content": "</s>"}]
        literal = chat(service, **body, messages=spelled)["prompt_token_ids"]
        assert END not in literal
        assert refused(service, "chat_template", "/v1/chat/completions", chat_template="{% for %}")
        assert refused(
            service,
            "chat_template_kwargs.quiet",
            "/v1/chat/completions",
            **body | {"chat_template_kwargs": {"quiet": 1}},
        )


def test_the_prompts_scores_come_alone_with_echo_and_no_tokens(text):
    whole = complete(text, prompt=["abc", "xy"], max_tokens=0, echo=True, logprobs=2)
    assert [one["text"] for one in whole["choices"]] == ["abc", "xy"]
    assert whole["usage"]["completion_tokens"] == 0
    for one, letters in zip(whole["choices"], ("abc", "xy"), strict=True):
        scores = one["logprobs"]
        assert scores["tokens"] == list(letters)
        assert scores["token_logprobs"][0] is None
        assert all(score < 0 for score in scores["token_logprobs"][1:])
        assert scores["text_offset"] == list(range(len(letters)))
        assert one["finish_reason"] == "length"
    (event,) = streamed(text, max_tokens=0, echo=True, logprobs=2)
    scores = whole["choices"][0]["logprobs"]
    assert_same_scores(event["choices"][0]["logprobs"], scores)
    longer = complete(text, echo=True, logprobs=2)["choices"][0]["logprobs"]
    assert longer["token_logprobs"][1:3] == pytest.approx(scores["token_logprobs"][1:], rel=1e-5)
    assert refused(text, "max_tokens", max_tokens=0)


def test_several_prompts_are_streamed_side_by_side(text):
    prompts = ["abc", "xyz", "q"]
    whole = complete(text, prompt=prompts, n=2, seed=5, temperature=1.0, echo=True, logprobs=1)
    options = {"include_usage": True}
    events = streamed(text, prompt=prompts, n=2, seed=5, temperature=1.0, echo=True, logprobs=1, stream_options=options)
    assert len({event["id"] for event in events}) == 1
    for one in whole["choices"]:
        own = [c for event in events for c in event["choices"] if c["index"] == one["index"]]
        assert "".join(choice["text"] for choice in own) == one["text"]
        assert [o for choice in own if choice["logprobs"] for o in choice["logprobs"]["text_offset"]] == one[
            "logprobs"
        ]["text_offset"]
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == [one["finish_reason"]]
    assert {key: events[-1]["usage"][key] for key in ("prompt_tokens", "completion_tokens")} == {
        key: whole["usage"][key] for key in ("prompt_tokens", "completion_tokens")
    }


def test_what_sglangs_and_vllms_benchmarks_send_is_streamed(text):
    """Payloads of `sglang.bench_serving --backend sglang-oai` and of `vllm bench serve` for completions."""
    sglang = {"temperature": 0.0, "best_of": 1, "max_tokens": 5, "stream": True, "ignore_eos": True}
    vllm = {
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 5,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    for body in (sglang, vllm):
        events = streamed(text, **body)
        assert all(event["choices"] or "usage" in event for event in events)
        assert sum(bool(choice["finish_reason"]) for event in events for choice in event["choices"]) == 1


def test_tokens_are_named_by_their_ids_where_that_is_wanted(text):
    (one,) = complete(text, logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True)["choices"]
    assert one["logprobs"]["tokens"] == [f"token_id:{token}" for token in one["token_ids"]]
    assert all(re.fullmatch(r"token_id:\d+", name) for top in one["logprobs"]["top_logprobs"] for name in top)
    named = chat(text, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert all(entry["token"].startswith("token_id:") for entry in named["content"])
    assert complete(text, logprobs=True)["choices"][0]["logprobs"]["top_logprobs"][0]
    assert complete(text, logprobs=0)["choices"][0]["logprobs"]["top_logprobs"] == [{}] * 12


def test_a_request_names_its_answer(text):
    assert complete(text, request_id="mine-1")["id"] == "cmpl-mine-1"
    assert chat(text, request_id="mine-1")["id"] == "chatcmpl-mine-1"
    assert streamed(text, request_id="x.y")[0]["id"] == "cmpl-x.y"
    assert refused(text, "request_id", request_id="a b\n")


def test_special_tokens_of_prompts_and_names_of_habits(text):
    assert complete(text, add_special_tokens=False)["choices"]
    assert chat(text, add_special_tokens=False, separate_reasoning=True, spaces_between_special_tokens=False)
    for name, value in (("add_special_tokens", True), ("separate_reasoning", False), ("stream_reasoning", False)):
        assert refused(text, name, "/v1/chat/completions", **{name: value})


def test_a_model_without_fill_in_tokens_says_so(text):
    assert "fill-in-the-middle" in refused(text, "suffix", suffix="def")


OLD_NAMES = {
    "regex": "[ab]{3}",
    "ebnf": 'root ::= "a" | "b"',
    "json_schema": json.dumps({"type": "integer", "minimum": 3, "maximum": 7}),
    "guided_json": {"type": "boolean"},
    "guided_regex": "x{2}",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'root ::= "q"',
}
FITS = {
    "regex": r"[ab]{3}",
    "ebnf": "a|b",
    "json_schema": "[3-7]",
    "guided_json": "true|false",
    "guided_regex": "xx",
    "guided_choice": "yes|no",
    "guided_grammar": "q",
}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_other_names_of_structured_outputs_hold_an_answer(text, name):
    body = {name: OLD_NAMES[name], "temperature": 1.0, "max_tokens": 20}
    assert re.fullmatch(FITS[name], chat(text, **body)["choices"][0]["message"]["content"])
    assert re.fullmatch(FITS[name], complete(text, **body)["choices"][0]["text"])
    assert refused(text, name, **body | {"structured_outputs": {"choice": ["x"]}})


ENDLESS = 'root ::= "a" root'
"""It allows a token at every place, and no whole text: xgrammar goes on with it up to the limit."""
UNSATISFIABLE = {
    "regex": ["a^", r"[^\s\S]", "(?=a)b", "(?!a)a", "[]", r"x[^\s\S]", "(", "a{5,2}", r"\bx"],
    "ebnf": ["root ::= root", 'root ::= "a" x', 'foo ::= "a"', ENDLESS, 'root ::= "a" []'],
    "json_schema": [
        "false",
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "array", "minItems": 3, "maxItems": 1},
        {"type": []},
        {"anyOf": []},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "string", "pattern": r"x[^\s\S]"},
    ],
}


def check_unsatisfiable(service, name: str, source) -> None:
    body = {name: source, "temperature": 1.0, "max_tokens": 40}
    for path, fields in (("/v1/completions", {"prompt": "abc"}), ("/v1/chat/completions", {"messages": HELLO})):
        answer = post(service, path, **fields, **body)
        if source == ENDLESS and answer.status_code == 200:
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            continue
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text
        streamed = post(service, path, **fields, **body, stream=True)
        if streamed.status_code == 400:
            assert streamed.json()["error"]["param"] == name, streamed.text
        else:  # its first tokens were allowed
            last = streamed.text.strip().split("data: ")[-1]
            assert json.loads(last)["error"]["param"] == name, streamed.text


@pytest.mark.parametrize("name", UNSATISFIABLE)
def test_a_grammar_that_no_text_satisfies_is_the_clients_mistake(text, name):
    for source in UNSATISFIABLE[name]:
        check_unsatisfiable(text, name, source)
    assert complete(text)["choices"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_so_it_is_with_either_library(start_service, tiny_text_model, backend):
    settings = {"text__model": str(tiny_text_model), "text__engine__grammar_backend": backend}
    with start_service("text", **settings, text__engine__threads="1") as service:
        for name, sources in UNSATISFIABLE.items():
            for source in sources:
                check_unsatisfiable(service, name, source)
        nines = {str(token): 60 for token in post(service, "/tokenize", prompt="9").json()["tokens"]}
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}}
        schema |= {"required": ["n", "x"], "additionalProperties": False}
        (one,) = complete(service, json_schema=schema, logit_bias=nines, max_tokens=400)["choices"]
        assert one["finish_reason"] == "stop"
        assert max(map(len, re.findall(r"\d+", one["text"]))) <= 20
        json.loads(one["text"])
