"""Answers that end anywhere: no part of a call's frame is content, in any dialect, whole or streamed."""

from __future__ import annotations

import json

import pytest

from tessera.language.answers import ChatAnswer
from tessera.language.generation import TextDelta
from tessera.language.parsers.dialects import THINK, Dialect
from tessera.wire.tools import Function, Tool

DIALECTS = ["hermes", "llama", "mistral", "mistral_list", "deepseek", "deepseek_fenced", "harmony"]
TOOLS = [Tool(function=Function(name="add")), Tool(function=Function(name="look_up"))]
ARGUMENTS = ['{"a": 1, "b": "x<y"}', '{"city": "Ulm", "more": [1, {"k": null}]}']


def written(dialect: Dialect) -> str:
    """Two calls as the grammar of `tool_choice: required` has them written, or one where it allows one."""
    frame = json.loads(dialect.enforced(TOOLS, one=False))
    calls = [call["begin"] + arguments + call["end"] for call, arguments in zip(frame["calls"], ARGUMENTS, strict=True)]
    return frame["begin"] + frame["separator"].join(calls[: frame["most"]]) + frame["end"]


def answered(dialect: Dialect, pieces: list[str], finish: str, *, only_calls: bool) -> ChatAnswer:
    """An answer of these pieces; what its stream had is compared with the whole message."""
    answer = ChatAnswer(dialect.parser(TOOLS, opened=False), only_calls=only_calls)
    deltas = []
    for piece in pieces:
        deltas += answer.take(TextDelta(0, piece, [], [], None))
    deltas += answer.take(TextDelta(0, "", [], [], finish))
    streamed = "".join(delta.content for delta in deltas if isinstance(delta.content, str))
    assert streamed == (answer.message().content or "")
    return answer


def parts(answer: ChatAnswer) -> tuple[str, list[tuple[str, str]]]:
    message = answer.message()
    calls = message.tool_calls or []
    return message.content or "", [(call.function.name, call.function.arguments) for call in calls]


def cuts(text: str):
    """Every beginning of a text, in one piece and character by character."""
    for end in range(len(text) + 1):
        yield [text[:end]]
        yield list(text[:end])


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("finish", ["length", "stop"])
def test_an_enforced_call_has_no_content_wherever_the_answer_ends(name, finish):
    dialect = Dialect(name, None, described=False)
    text = written(dialect)
    _, whole = parts(answered(dialect, [text], "stop", only_calls=True))
    assert [one for one, _ in whole] == ["add", "look_up"][: len(whole)]
    assert [json.loads(arguments) for _, arguments in whole] == [json.loads(one) for one in ARGUMENTS][: len(whole)]
    for pieces in cuts(text):
        content, calls = parts(answered(dialect, pieces, finish, only_calls=True))
        assert content == ""
        assert calls == whole[: max(0, len(calls) - 1)] + calls[-1:]
        assert all(wanted[1].startswith(got[1]) for wanted, got in zip(whole, calls, strict=False)) or finish == "stop"


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "llama"])
def test_a_chosen_call_that_is_cut_leaves_only_the_words_before_it(name):
    dialect = Dialect(name, None, described=False)
    words = "Let me see: 1 > 0." if name != "harmony" else "<|channel|>final<|message|>Let me see: 1 > 0.<|end|>"
    call = written(dialect) if name != "harmony" else "<|start|>assistant" + written(dialect)
    text = f"{words}\n\n{call}" if name != "harmony" else words + call
    for pieces in cuts(text):
        content, calls = parts(answered(dialect, pieces, "length", only_calls=False))
        assert "Let me see: 1 > 0.".startswith(content.rstrip("\n"))
        assert not calls or content == "Let me see: 1 > 0."


def test_a_bare_call_of_llama_that_is_cut_is_content_as_long_as_it_may_be_plain_json():
    dialect = Dialect("llama", None, described=False)
    content, calls = parts(answered(dialect, ['{"a": [1, 2'], "length", only_calls=False))
    assert (content, calls) == ('{"a": [1, 2', [])
    text = f"So: <|python_tag|>{written(dialect)}"
    for pieces in cuts(text):
        content, _ = parts(answered(dialect, pieces, "length", only_calls=False))
        assert "So:".startswith(content.rstrip())


@pytest.mark.parametrize("name", ["hermes", "mistral", "deepseek"])
def test_whitespace_behind_the_last_call_is_no_content(name):
    dialect = Dialect(name, None, described=False)
    for end in ("", "\n", " \n\n"):
        for finish in ("stop", "length"):
            content, calls = parts(answered(dialect, [written(dialect), end], finish, only_calls=False))
            assert (content, len(calls)) == ("", 2)


def test_a_thought_that_is_cut_shows_no_part_of_its_tags():
    dialect = Dialect("hermes", THINK, described=False)
    text = f"<think>\nhm, 1 < 2\n</think>\n\n{written(dialect)}"
    for pieces in cuts(text):
        answer = answered(dialect, pieces, "length", only_calls=False)
        content, _ = parts(answer)
        thought = answer.message().reasoning_content
        assert content == ""
        assert not isinstance(thought, str) or "hm, 1 < 2".startswith(thought.rstrip("\n"))


def test_what_only_looks_like_a_frame_stays_where_the_model_ended_its_answer():
    dialect = Dialect("hermes", None, described=False)
    for text in ("a <", "see <tool", "<tool_call>", '<tool_call>{"na'):
        assert parts(answered(dialect, [text], "stop", only_calls=False)) == (text, [])
