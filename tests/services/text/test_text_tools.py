"""Tools, thoughts, structured output and tokens on the text service, as OpenAI's SDK and plain HTTP see them.

The model is random and babbles at temperature 1: whatever comes out right was enforced.
"""

from __future__ import annotations

import concurrent.futures
import json
import re

import httpx
import jsonschema
import openai
import pydantic
import pytest

MODEL = "tiny-text"
HELLO = [{"role": "user", "content": "Hello"}]


class Weather(pydantic.BaseModel):
    """The weather of a place."""

    city: str = pydantic.Field(max_length=6)
    celsius: int = pydantic.Field(ge=-50, le=60)


def tool(name: str, **properties) -> dict:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


TOOLS = [tool("add", a={"type": "integer", "maximum": 99, "minimum": 0}, b={"enum": ["x", "y"]}), tool("stop")]


def post(text, path: str, **body) -> httpx.Response:
    return httpx.post(f"{text.url}{path}", json={"model": MODEL, **body}, timeout=60)


def chat(text, **body) -> dict:
    answer = post(text, "/v1/chat/completions", **({"messages": HELLO, "temperature": 1.0, "max_tokens": 300} | body))
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_calls(calls) -> None:
    for call in calls:
        (schema,) = [
            one["function"]["parameters"] for one in TOOLS if one["function"]["name"] == call["function"]["name"]
        ]
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    assert len({call["id"] for call in calls}) == len(calls)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"add", "stop"}), ({"type": "function", "function": {"name": "add"}}, {"add"})],
    ids=["required", "named"],
)
def test_a_call_that_is_asked_for_is_made_and_fits_its_schema(text, choice, names):
    for seed in range(4):
        answer = chat(text, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, seed=seed)
        (one,) = answer["choices"]
        assert one["finish_reason"] == "tool_calls"
        assert one["message"]["content"] is None
        (call,) = one["message"]["tool_calls"]
        assert call["function"]["name"] in names
        check_calls([call])


def test_parallel_calls_and_choices(text):
    (newline,) = post(text, "/tokenize", prompt="\n").json()["tokens"]
    bias = {str(newline): 5}  # so that it goes on where it could end
    answer = chat(text, tools=TOOLS, tool_choice="required", n=6, seed=3, max_tokens=400, logit_bias=bias)
    for one in answer["choices"]:
        calls = one["message"]["tool_calls"]
        # The last one of an answer that was cut may be cut too.
        check_calls(calls if one["finish_reason"] == "tool_calls" else calls[:-1])
    assert max(len(one["message"]["tool_calls"]) for one in answer["choices"]) > 1


def test_the_sdk_adds_a_stream_of_calls_up_to_what_it_is_whole(client, counted):
    asked = {
        "model": MODEL,
        "messages": HELLO,
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 200,
        "tools": [openai.pydantic_function_tool(Weather)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    assert call.function.arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    assert counted(final.usage) == counted(whole.usage)
    deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(deltas) > 3, "arguments must come in pieces"
    assert "".join(deltas) == call.function.arguments


def test_the_sdk_parses_a_structured_answer_streamed_and_whole(client):
    asked = {"model": MODEL, "messages": HELLO, "temperature": 1.0, "seed": 2, "response_format": Weather}
    whole = client.chat.completions.parse(**asked, max_tokens=200)
    assert isinstance(whole.choices[0].message.parsed, Weather)
    with client.chat.completions.stream(**asked, max_tokens=200) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == whole.choices[0].message.parsed
    assert whole.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("asked", "check"),
    [
        ({"response_format": {"type": "json_object"}}, lambda said: isinstance(json.loads(said), dict)),
        ({"structured_outputs": {"regex": "[ab]{3}(-[0-9]{2})?"}}, re.compile("[ab]{3}(-[0-9]{2})?").fullmatch),
        ({"structured_outputs": {"choice": ["yes", "no é"]}}, lambda said: said in {"yes", "no é"}),
        ({"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c")* "d"'}}, re.compile("a[bc]*d").fullmatch),
        ({"structured_outputs": {"json": {"type": "integer", "multipleOf": 3}}}, lambda said: int(said) % 3 == 0),
        ({"structured_outputs": {"json": '{"enum": [1, 2]}'}}, lambda said: json.loads(said) in {1, 2}),
    ],
    ids=["object", "regex", "choice", "grammar", "fallback", "text"],
)
@pytest.mark.parametrize("route", ["chat", "completions"])
def test_structured_answers(text, route, asked, check):
    complete = 0
    for seed in range(3):
        body = {"temperature": 1.0, "max_tokens": 400, "seed": seed, **asked}
        if route == "chat":
            (one,) = chat(text, **body)["choices"]
            said = one["message"]["content"]
        else:
            (one,) = post(text, "/v1/completions", prompt="x", **body).json()["choices"]
            said = one["text"]
        if one["finish_reason"] == "stop":
            complete += 1
            assert check(said), said
    assert complete or "response_format" in asked


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY}}


def test_tools_beside_a_format_give_calls_or_an_answer_in_the_format(text):
    brace, angle = post(text, "/tokenize", prompt="{<").json()["tokens"]
    kinds = set()
    for seed in range(8):
        bias = {str(brace if seed % 2 else angle): 5}  # the first token decides
        asked = {"tools": TOOLS[:1], "response_format": FORMAT, "parallel_tool_calls": False, "max_tokens": 1000}
        (one,) = chat(text, **asked, seed=seed, logit_bias=bias)["choices"]
        calls = one["message"].get("tool_calls")
        kinds.add(one["finish_reason"])
        if calls:
            assert one["message"]["content"] is None
            check_calls(calls)
        else:
            jsonschema.validate(json.loads(one["message"]["content"]), CITY)
    assert kinds == {"tool_calls", "stop"}


def test_a_demanded_call_comes_before_the_format_and_no_tools_leave_the_format(text):
    asked = {"tools": TOOLS[:1], "response_format": FORMAT, "parallel_tool_calls": False, "max_tokens": 1000}
    (one,) = chat(text, **asked, tool_choice="required")["choices"]
    check_calls(one["message"]["tool_calls"])
    assert one["message"]["content"] is None
    (one,) = chat(text, **asked, tool_choice="none")["choices"]
    jsonschema.validate(json.loads(one["message"]["content"]), CITY)


def test_structured_answers_share_batches_and_survive_preemption(start_service, tiny_text_model):
    """A cache that holds few of them at once: they give their pages up and come back in the middle of a word."""
    schema = {"type": "array", "items": {"enum": ["one", "two"]}, "minItems": 30, "maxItems": 30}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    small = {"text__engine__kv_cache_bytes": str(1 << 19), "text__engine__threads": "1"}
    with start_service("text", text__model=str(tiny_text_model), **small) as service:

        def ask(seed: int):
            body = {"temperature": 1.0, "max_tokens": 800, "seed": seed, "logprobs": True, "top_logprobs": 1}
            return chat(service, **body, **(asked if seed % 3 else {"stop": ["}"]}))["choices"][0]

        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            answers = list(pool.map(ask, range(9)))
        page = httpx.get(f"{service.url}/metrics").text
    for seed, answer in enumerate(answers):
        if seed % 3:
            jsonschema.validate(json.loads(answer["message"]["content"]), schema)
            said = b"".join(bytes(token["bytes"]) for token in answer["logprobs"]["content"])
            assert said.decode() == answer["message"]["content"]
    preemptions = next(line for line in page.splitlines() if line.startswith("tessera_text_engine_preemptions_total "))
    assert float(preemptions.split()[1]) > 0


def test_a_stop_string_ends_a_structured_answer(text):
    asked = {"structured_outputs": {"regex": "a{5}b{5}"}, "stop": ["bb"]}
    (one,) = chat(text, **asked)["choices"]
    assert one["message"]["content"] == "aaaaa"
    (one,) = chat(text, structured_outputs={"regex": "a{5}"}, ignore_eos=True)["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == ("aaaaa", "stop")


MISSING = {"$ref": "#/$defs/no"}
DEEP: dict = {"type": "integer"}
for _ in range(60):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}},
            "response_format",
            "48 levels",
        ),
        ({"structured_outputs": {"json": {"enum": ["x" * 70_000]}}}, "structured_outputs.json", "65536"),
        (
            {"structured_outputs": {"json": {"type": "string", "maxLength": 10**9}}},
            "structured_outputs.json",
            "maxLength",
        ),
        (
            {"structured_outputs": {"json": {"type": "integer", "minimum": 2, "maximum": 1}}},
            "structured_outputs.json",
            "inimum",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "compiled"),
        ({"structured_outputs": {"regex": "a" * 9000}}, "structured_outputs.regex", "length"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar", "nothing"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "length"),
        ({"structured_outputs": {}}, "structured_outputs", "takes one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex, choice"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "not both",
        ),
        ({"structured_outputs": {"regex": "a"}, "tools": TOOLS}, "structured_outputs", "tool_choice"),
        ({"structured_outputs": {"json": MISSING}, "tools": TOOLS}, "structured_outputs.json", "compiled"),
        ({"structured_outputs": {"json": {}}, "tools": [tool("a", x=MISSING)]}, "tools", "compiled"),
        ({"tool_choice": "required"}, "tool_choice", "needs `tools`"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "none of"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools", "same name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "regex"),
        ({"tools": [tool("a", x=MISSING)], "tool_choice": "required"}, "tools", "compiled"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "required"),
        (
            {"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]},
            "messages[0].reasoning_content",
            "assistant",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
            "JSON",
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
            "not a variable",
        ),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "not a variable"),
        ({"functions": []}, "functions", "`tools`"),
        ({"function_call": "auto"}, "function_call", "`tool_choice`"),
        ({"stop": "x" * 300}, "stop", "256"),
        ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias", "1024"),
    ],
    ids=range(31),
)
def test_what_cannot_be_is_refused_by_name_and_the_engine_goes_on(text, body, param, words):
    answer = post(text, "/v1/chat/completions", **({"messages": HELLO, "max_tokens": 5} | body))
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert error["param"] == param
    assert words in error["message"]
    assert chat(text, max_tokens=1)["choices"]


def test_a_conversation_with_calls_and_results_is_taken(client):
    first = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=TOOLS,
        tool_choice="required",
        seed=1,
        max_tokens=200,
        parallel_tool_calls=False,
    )
    message = first.choices[0].message
    history = [
        *HELLO,
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "42"},
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
    ]
    second = client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS, max_tokens=2)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    dumped = [*HELLO, message.model_dump(), {"role": "tool", "tool_call_id": "x", "content": "42"}]
    assert client.chat.completions.create(model=MODEL, messages=dumped, max_tokens=2).choices
    off = client.chat.completions.create(model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="none", max_tokens=2)
    assert (
        off.usage.prompt_tokens
        == client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1).usage.prompt_tokens
    )


def test_tokens_there_and_back(text, client):
    found = post(text, "/tokenize", prompt="Hé", return_token_strs=True).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) == 3
    assert found["max_model_len"] == 4096
    assert post(text, "/detokenize", tokens=found["tokens"]).json() == {"prompt": "Hé"}
    assert post(text, "/detokenize", tokens=[257]).json() == {"prompt": "</s>"}
    asked = post(text, "/tokenize", messages=HELLO).json()
    assert post(text, "/detokenize", tokens=asked["tokens"]).json()["prompt"] == "user: Hello\nassistant:"
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert asked["count"] == answer.usage.prompt_tokens
    with_tools = post(text, "/tokenize", messages=HELLO, tools=TOOLS).json()
    assert with_tools["count"] > asked["count"]
    for body, param in [
        ({}, "prompt"),
        ({"prompt": "x", "messages": HELLO}, "prompt"),
        ({"prompt": "x", "tools": TOOLS}, "tools"),
        ({"prompt": "x" * 10**6}, "prompt"),
    ]:
        refused = post(text, "/tokenize", **body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    refused = post(text, "/detokenize", tokens=[99999])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")
