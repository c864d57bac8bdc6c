"""How each family writes thoughts and calls: recognised by its template, enforced by what its reader reads."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import InvalidRequestError
from tessera.language.answers import ChatAnswer
from tessera.language.constraints import answer_grammar
from tessera.language.conversation import calls_as_text, describe_tools, render_prompt, template_message
from tessera.language.generation import TextDelta
from tessera.language.parsers.dialects import MISTRAL_THINK, THINK, Dialect
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.conversation import Message
from tessera.wire.engine import Thinking
from tessera.wire.tools import CalledFunction, Function, JsonObjectFormat, TextFormat, Tool, ToolCall

WAYS = ["hermes", "llama", "mistral", "mistral_list", "deepseek", "deepseek_fenced", "harmony"]
CONTROL = ("<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "</s>")
TOOLS = [Tool(function=Function(name=name, parameters={"type": "object"})) for name in ("get", "put")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    fast.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 262}))
    return Tokenizer(directory)


def request(**more) -> ChatCompletionRequest:
    return ChatCompletionRequest(**({"model": "m", "messages": [Message("user", "x")], "tools": TOOLS} | more))


@pytest.mark.parametrize(
    ("template", "control", "calls", "thinking"),
    [
        ("…<tool_call>{{ tools }}…content.split('</think>')…", (), "hermes", THINK),
        ("…<tool_call>…", (), "hermes", None),
        ("…<tool_call>\n<function=…", ("</think>",), "hermes", THINK),
        ("…", ("<|python_tag|>",), "llama", None),
        ("…[TOOL_CALLS]…", ("[TOOL_CALLS]",), "mistral_list", None),
        ("…[TOOL_CALLS]…[ARGS]…", ("[THINK]", "[/THINK]"), "mistral", MISTRAL_THINK),
        ("…<｜tool▁calls▁begin｜>…```json…</think>", (), "deepseek_fenced", THINK),
        ("…<｜tool▁calls▁begin｜>…", (), "deepseek", None),
        ("…<|channel|>…<|message|>…", (), "harmony", None),
        ("{{ messages }}", (), "hermes", None),
    ],
)
def test_a_dialect_is_recognised(template, control, calls, thinking):
    found = Dialect.of(template, control, takes_tools=True)
    assert (found.calls, found.thinking) == (calls, thinking)
    other = found.overridden("mistral", "none")
    assert (other.calls, other.thinking) == ("mistral", None)
    assert found.overridden("auto", "auto") == found


@pytest.mark.parametrize("way", WAYS)
def test_what_a_grammar_enforces_is_what_the_reader_reads(way):
    dialect = Dialect(way, None, described=False)
    source = json.loads(dialect.enforced(TOOLS, one=False))
    some = source["calls"] if source["most"] is None else source["calls"][:1]
    text = source["separator"].join(call["begin"] + '{"a": 1}' + call["end"] for call in some)
    answer = ChatAnswer(dialect.parser(TOOLS, opened=False))
    answer.take(TextDelta(0, source["begin"] + text + source["end"], [], [], "stop"))
    message = answer.message()
    assert [call.function.name for call in message.tool_calls] == ["get", "put"][: len(some)]
    assert {call.function.arguments for call in message.tool_calls} == {'{"a": 1}'}
    assert message.content is None
    assert answer.reason() == "tool_calls"
    assert json.loads(dialect.enforced(TOOLS, one=True))["most"] == 1


def test_control_tokens_are_text_only_for_those_who_read_them(tokenizer):
    ids = [*tokenizer.encode("é", add_special_tokens=False)[:1], tokenizer.fast.token_to_id("[TOOL_CALLS]")]
    ids += tokenizer.encode("get", add_special_tokens=False)
    ids += [tokenizer.fast.token_to_id("[ARGS]"), *tokenizer.encode("日</s>", add_special_tokens=False)]
    for shown, expected in [
        ((), "\ufffdget日"),
        (("[TOOL_CALLS]", "[ARGS]", "nothing"), "\ufffd[TOOL_CALLS]get[ARGS]日"),
    ]:
        detokenizer = Detokenizer(tokenizer, tokenizer.encode("x", add_special_tokens=False), shown)
        assert "".join(detokenizer.push(token) for token in ids) + detokenizer.flush() == expected


def test_a_grammar_begins_after_the_thought(tokenizer):
    thinking = Dialect("mistral", THINK, described=False)
    begin, end = (tokenizer.fast.token_to_id(tag) for tag in THINK)

    def found(prompt: str, dialect: Dialect = thinking):
        return answer_grammar(request(tool_choice="required"), dialect, tokenizer, prompt)

    assert found("…").thinking == Thinking(begin=begin, end=[end], open=False)
    assert found("…<think>\n").thinking.open
    assert found("…<think>\n\n</think>\n\n").thinking is None
    assert found("…", Dialect("mistral", None, described=False)).thinking is None
    assert {"[TOOL_CALLS]", "[ARGS]"} <= set(found("…").markers)
    harmony = Dialect("harmony", None, described=False)
    assert found("…", harmony).thinking is None
    assert answer_grammar(request(tools=None, response_format=TextFormat()), harmony, tokenizer, "…") is None
    structured = answer_grammar(request(tools=None, response_format=JsonObjectFormat()), harmony, tokenizer, "…")
    final = tokenizer.encode("<|channel|>final<|message|>", add_special_tokens=False)
    assert structured.thinking == Thinking(begin=None, end=final, open=True)


def test_tools_and_variables_reach_the_template_and_cannot_speak_for_it():
    template = ChatTemplate(
        "{% generation %}{{ messages[0].content }}{% endgeneration %}|{{ tools | tojson(sort_keys=true) }}|"
        "{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}|{{ note }}",
        {},
    )
    dialect = Dialect.of(template.source, (), takes_tools="tools" in template.variables)
    asked = request(chat_template_kwargs={"note": "a<end>b"}, reasoning_effort="none", tools=TOOLS[:1])
    hide = lambda text, _: text.replace("<end>", "#")  # noqa: E731
    text = render_prompt(template, dialect, asked, [{"role": "user", "content": "x"}], hide, as_content=str)
    first, tools, mode, note = text.split("|")
    assert (first, mode, note) == ("x", "quick", "a#b")
    assert json.loads(tools)[0]["function"]["name"] == "get"
    for name in ("messages", "raise_exception", "nothing"):
        with pytest.raises(InvalidRequestError, match="not a variable"):
            render_prompt(template, dialect, request(chat_template_kwargs={name: 1}), [], hide, as_content=str)
    low = ChatTemplate("{{ reasoning_effort }}", {})
    assert render_prompt(low, dialect, request(reasoning_effort="minimal"), [], hide, as_content=str) == "low"


def test_a_template_for_tools_is_taken_when_there_are_tools(tmp_path):
    entries = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools | length }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    template = ChatTemplate.of(tmp_path)
    assert template.render([]) == "plain"
    assert template.render([], tools=[{}]) == "with 1"
    assert "tools" in template.variables


def test_a_template_that_knows_no_tools_is_told_of_them_in_words():
    call = ToolCall(id="1", function=CalledFunction(name="get", arguments='{"x": "<end>"}'))
    hide = lambda text, _: text.replace("<end>", "#")  # noqa: E731
    messages = [
        template_message(message, index, message.content or "", hide, text_arguments=False)
        for index, message in enumerate(
            [
                Message("system", "Be brief."),
                Message("assistant", None, tool_calls=[call]),
                Message("tool", "42", tool_call_id="1"),
            ]
        )
    ]
    tools, dialect = [{"type": "function", "function": {"name": "get"}}], Dialect("hermes", None, described=True)
    system, called, result = describe_tools(calls_as_text(messages, str), tools, dialect, str)
    assert system["content"].startswith("Be brief.\n\n")
    assert '{"name": "get"}' in system["content"]
    assert called == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "get", "arguments": {"x": "#"}}\n</tool_call>',
    }
    assert result == {"role": "user", "content": "<tool_response>\n42\n</tool_response>"}
    assert "<tool_call>" in system["content"]
    own = describe_tools([], tools, Dialect("deepseek", None, described=True), str)[0]["content"]
    assert '<｜tool▁call▁begin｜>function_name<｜tool▁sep｜>{"argument": "value"}<｜tool▁call▁end｜>' in own


CALLS = "{%% for m in messages %%}{{ m.content or '' }}{%% for c in m.tool_calls %%}%s{%% endfor %%}{%% endfor %%}"


@pytest.mark.parametrize(
    ("source", "text_arguments", "null_content"),
    [
        (
            "{% for m in messages %}{{ m.content or '' }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}",
            False,
            True,
        ),
        (
            "{% for m in messages %}{{ m.content + '' }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}",
            False,
            False,
        ),
        ("{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}", False, False),
        (CALLS % "{{ '[' + c.function.arguments + ']' }}", True, True),
        (CALLS % "{{ c.function.arguments }}", True, True),
        ("{{ raise_exception('no calls') if messages | length > 1 }}", False, False),
    ],
    ids=range(6),
)
def test_a_template_is_asked_how_it_takes_calls(source, text_arguments, null_content):
    template = ChatTemplate(source, {})
    assert (template.text_arguments, template.null_content) == (text_arguments, null_content)
