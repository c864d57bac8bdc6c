"""What models write, cut anywhere: calls and thoughts are found whole, and what is broken is shown, not lost."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.language.parsers.deepseek import DeepSeek
from tessera.language.parsers.events import AnswerText, Arguments, CallBegan, CallEnded, Thought, merge_events
from tessera.language.parsers.harmony import Harmony
from tessera.language.parsers.hermes import Hermes
from tessera.language.parsers.llama import Llama
from tessera.language.parsers.mistral import Mistral
from tessera.language.parsers.plain import Plain
from tessera.language.parsers.thinking import ThinkingFirst, Thoughts

SCHEMAS = {
    "get": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
    "put": {"type": "object", "properties": {}},
}
READERS = {
    "hermes": lambda: Hermes(SCHEMAS),
    "llama": lambda: Llama(SCHEMAS),
    "mistral": Mistral,
    "deepseek": DeepSeek,
    "harmony": Harmony,
    "plain": Plain,
    "thinking": lambda: ThinkingFirst(Thoughts("<think>", "</think>", opened=False), Hermes(SCHEMAS)),
    "opened": lambda: ThinkingFirst(Thoughts("<think>", "</think>", opened=True), Hermes(SCHEMAS)),
}
MARKS = [
    *("<tool_call>", "</tool_call>", "<function=get>", "</function>", "<parameter=text>", "</parameter>"),
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "get", "put", "<think>", "</think>", "```json", "```"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<|start|>", "assistant", "<|channel|>", "analysis", "final", " to=functions.get", "<|message|>", "<|end|>"),
    *('{"name": "get", "arguments": {"text": "a<b"}}', '{"name": "get"', ', "arguments": {', '"parameters": "{}"'),
    *("}", "]", "[", ", ", "; ", "\n", " ", "x", '"', "\\", "function", "é", "<", "1", "\\ud83d\\ude00", "{", ":"),
]


def told(reader, pieces):
    """Everything a reader tells, as one list."""
    events = [event for piece in pieces for event in reader.push(piece)]
    return merge_events([*events, *reader.finish()])


def content(events) -> str:
    return "".join(event.text for event in events if isinstance(event, AnswerText))


def calls(events) -> list[tuple[str, str]]:
    """Names and arguments; and that they come in order, each begun and ended once."""
    found: list[list[str]] = []
    running = None
    for event in events:
        if isinstance(event, CallBegan):
            assert running is None
            assert event.index == len(found)
            running = event.index
            found.append([event.name, ""])
        elif isinstance(event, Arguments):
            assert event.index == running
            found[event.index][1] += event.text
        elif isinstance(event, CallEnded):
            assert event.index == running
            running = None
    assert running is None
    return [(name, text) for name, text in found]


def everywhere(make, text: str):
    """The events of `text` in one piece, which are those of every cut into two, and of single characters."""
    whole = told(make(), [text])
    assert told(make(), list(text)) == whole
    for cut in range(1, len(text)):
        assert told(make(), [text[:cut], text[cut:]]) == whole, cut
    return whole


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=80, deadline=None)
@given(parts=st.lists(st.sampled_from(MARKS), max_size=16), seed=st.integers(0, 2**16))
def test_however_nonsense_is_cut_the_events_are_the_same_and_nothing_is_lost(name, parts, seed):
    text = "".join(parts)
    dice = random.Random(seed)
    cuts = sorted(dice.choices(range(len(text) + 1), k=dice.randint(0, 6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = told(READERS[name](), [text])
    assert told(READERS[name](), pieces) == told(READERS[name](), list(text)) == whole
    if not calls(whole) and name not in {"harmony", "thinking", "opened"}:
        assert content(whole) == text


VALUES = st.recursive(
    st.one_of(
        st.text(max_size=6), st.integers(-9, 9), st.booleans(), st.none(), st.sampled_from(["</tool_call>", "}"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["get", "put"]), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)), max_size=3
)
WORDS = st.sampled_from(["", "Let me see.", "a < b {c} [d] 1;", "x\ny"])


def write_hermes(said, made):
    blocks = [f'<tool_call>\n{{"name": "{n}", "arguments": {json.dumps(a)}}}\n</tool_call>' for n, a in made]
    return "\n".join([*([said] if said else []), *blocks])


def write_hermes_reversed(said, made):
    blocks = [f'<tool_call>{{"id": [1], "arguments": {json.dumps(a)}, "name": "{n}"}}</tool_call>' for n, a in made]
    return said + "".join(blocks)


def write_llama(said, made):
    if not made:
        return said
    return "; ".join(f'{{"name": "{n}", "parameters": {json.dumps(a)}}}' for n, a in made)


def write_llama_tag(said, made):
    return said + ("<|python_tag|>" + write_llama("", made) if made else "")


def write_mistral(said, made):
    listed = json.dumps([{"name": n, "arguments": a} for n, a in made])
    return said + (f"[TOOL_CALLS] {listed}" if made else "")


def write_mistral_named(said, made):
    return said + "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a)}" for n, a in made)


def write_mistral_ids(said, made):
    return said + "".join(f"[TOOL_CALLS]{n}[CALL_ID]a1B2c3D4e[ARGS]{json.dumps(a)}" for n, a in made)


def write_deepseek(said, made):
    blocks = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{json.dumps(a)}\n```<｜tool▁call▁end｜>"
        for n, a in made
    ]
    return said + ("<｜tool▁calls▁begin｜>" + "\n".join(blocks) + "<｜tool▁calls▁end｜>" if made else "")


def write_deepseek_bare(said, made):
    blocks = [f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{json.dumps(a)}<｜tool▁call▁end｜>" for n, a in made]
    return said + ("<｜tool▁calls▁begin｜>" + "".join(blocks) + "<｜tool▁calls▁end｜>" if made else "")


def write_harmony(said, made):
    messages = [f"<|channel|>commentary<|message|>{said}"] if said or not made else []
    messages += [f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{json.dumps(a)}" for n, a in made]
    return "<|end|><|start|>assistant".join(messages) + ("<|call|>" if made else "<|return|>")


WRITERS = [
    ("hermes", write_hermes),
    ("hermes", write_hermes_reversed),
    ("thinking", write_hermes),
    ("llama", write_llama),
    ("llama", write_llama_tag),
    ("mistral", write_mistral),
    ("mistral", write_mistral_named),
    ("mistral", write_mistral_ids),
    ("deepseek", write_deepseek),
    ("deepseek", write_deepseek_bare),
    ("harmony", write_harmony),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write"), WRITERS, ids=lambda value: getattr(value, "__name__", value))
@settings(max_examples=8, deadline=None)
@given(said=WORDS, made=CALLS)
def test_what_was_written_is_read_at_every_cut(name, write, said, made):
    text = write(said, made)
    events = everywhere(READERS[name], text)
    assert [(called, json.loads(arguments)) for called, arguments in calls(events)] == made
    expected = "" if write is write_llama and made else said
    assert content(events) == (expected.rstrip() if made else expected)


@pytest.mark.parametrize(("name", "write"), WRITERS, ids=lambda value: getattr(value, "__name__", value))
def test_names_and_arguments_are_told_while_they_are_written(name, write):
    reader, seen = READERS[name](), []
    for character in write("", [("get", {"text": "a long text"})]):
        seen += [(event, character) for event in reader.push(character)]
    pieces = [event for event, _ in seen if isinstance(event, Arguments)]
    if write is write_hermes_reversed:  # arguments before the name have to wait for it
        assert len(pieces) == 1
    else:
        assert len(pieces) > 10


@given(text=st.text(alphabet='ab\n<>/"\\{}é', max_size=20), count=st.integers(-5, 5))
@settings(max_examples=10, deadline=None)
def test_xml_parameters_become_json_by_their_schema(text, count):
    written = (
        f"Now:\n<tool_call>\n<function=get>\n<parameter=text>\n{text}\n</parameter>\n"
        f"<parameter=count>\n{count}\n</parameter>\n<parameter=unknown>\n[1]\n</parameter>\n</function>\n</tool_call>"
    )
    events = everywhere(READERS["hermes"], written)
    ((name, arguments),) = calls(events)
    assert name == "get"
    assert json.loads(arguments) == {"text": text, "count": count, "unknown": "[1]"}
    assert content(events) == "Now:"


@pytest.mark.parametrize(
    ("name", "text", "thought", "said"),
    [
        ("thinking", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("thinking", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("thinking", "Yes, <think>no</think>", "", "Yes, <think>no</think>"),
        ("thinking", "  Yes", "", "  Yes"),
        ("thinking", "<think>never ends", "never ends", ""),
        ("opened", "Hm.\n</think>\n\nYes. </think>", "Hm.", "Yes. </think>"),
        ("opened", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("opened", "never ends", "never ends", ""),
        (
            "harmony",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "Hm.",
            "Yes.",
        ),
        ("harmony", "<|channel|>final<|message|>Ye", "", "Ye"),
        ("harmony", "no channel at all", "", "no channel at all"),
        ("harmony", "<|channel|>fin", "", "<|channel|>fin"),
    ],
)
def test_thoughts_are_told_apart(name, text, thought, said):
    events = everywhere(READERS[name], text)
    assert "".join(event.text for event in events if isinstance(event, Thought)) == thought
    assert content(events) == said


def test_a_call_after_a_thought():
    events = everywhere(READERS["thinking"], "<think>hm</think>\n\n" + write_hermes("So:", [("put", {})]))
    assert [type(event) for event in events] == [Thought, AnswerText, CallBegan, Arguments, CallEnded]


@pytest.mark.parametrize(
    ("name", "text", "made", "said"),
    [
        # cut off within a call: what came is a call
        ("hermes", '<tool_call>{"name": "get", "arguments": {"text": "a', [("get", '{"text": "a')], ""),
        ("hermes", '<tool_call>{"name": "get", "argu', [], '<tool_call>{"name": "get", "argu'),
        # cut off within what ends a call: that is no answer
        ("hermes", '<tool_call>{"name": "get", "arguments": {}}\n</tool_call', [("get", "{}")], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": {}}\n', [("get", "{}")], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": {}}\n</tool', [("get", "{}")], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": {}}\n</b>', [("get", "{}")], "\n</b>"),
        ("deepseek", "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call", [("get", "{}")], ""),
        # the last brace is missing, which small models forget
        ("hermes", '<tool_call>{"name": "get", "arguments": {"a": 1}\n</tool_call>', [("get", '{"a": 1}')], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": {"a": 1</tool_call> so', [("get", '{"a": 1')], " so"),
        ("hermes", '<tool_call>{"name": "get"}</tool_call>', [("get", "{}")], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": null}</tool_call>', [("get", "{}")], ""),
        ("hermes", '<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>', [("get", '{"a": 1}')], ""),
        ("hermes", "<tool_call>nothing</tool_call>", [], "<tool_call>nothing</tool_call>"),
        ("hermes", '<tool_call> <tool_call>{"name": "put"}</tool_call>', [("put", "{}")], "<tool_call> "),
        ("hermes", '<tool_call>{"name": 5}</tool_call>', [], '<tool_call>{"name": 5}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get", "arguments": {]}}', [("get", "{")], "]}}"),
        ("hermes", "a <tool_ b <tool_call", [], "a <tool_ b <tool_call"),
        # JSON that is an answer
        ("llama", '{"name": "Bob", "parameters": {"a": 1}}', [], '{"name": "Bob", "parameters": {"a": 1}}'),
        ("llama", '{"answer": 42}', [], '{"answer": 42}'),
        ("llama", "<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
        ("llama", '{"name": "get", "parameters": {}} so', [("get", "{}")], " so"),
        ("mistral", "[TOOL_CALLS] nothing", [], "[TOOL_CALLS] nothing"),
        ("mistral", '[TOOL_CALLS]get{"a": 1}', [("get", '{"a": 1}')], ""),
        ("mistral", "[TOOL_CALLS] []", [], "[TOOL_CALLS] []"),
        ("deepseek", "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜>", [("get", "{}")], ""),
        ("deepseek", "<｜tool▁calls▁begin｜>get", [], "<｜tool▁calls▁begin｜>get"),
        ("harmony", " to=functions.get<|channel|>commentary json<|message|>{}", [("get", "{}")], ""),
        ("harmony", "<|channel|>analysis to=functions.put<|message|><|call|>", [("put", "{}")], ""),
    ],
)
def test_what_is_broken_is_a_call_as_far_as_it_came_or_else_content(name, text, made, said):
    events = everywhere(READERS[name], text)
    assert calls(events) == made
    assert content(events) == said


def test_a_long_answer_is_read_in_linear_time():
    reader = READERS["thinking"]()
    text = "<think>" + "word \n" * 20_000 + "</think>" + write_hermes("", [("get", {"text": "x" * 50_000})])
    events = told(reader, [text])
    assert len(calls(events)) == 1
