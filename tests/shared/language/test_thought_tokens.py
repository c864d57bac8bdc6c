"""The tokens of a thought are counted by the text that they gave, in any dialect and however tokens arrive."""

from __future__ import annotations

import pytest

from tessera.language.answers import ChatAnswer
from tessera.language.generation import Prompt, TextDelta
from tessera.language.parsers.dialects import THINK, Dialect
from tessera.language.usage import TokenCount, usage
from tessera.wire.tools import Function, Tool

TOOLS = [Tool(function=Function(name="add"))]
CALL = ["<tool_call>", '\n{"name": "add"', ', "arguments": {}}', "\n", "</tool_call>"]
HARMONY = ["<|channel|>", "analysis", "<|message|>", "Let", " me", " see", "<|end|>", "<|start|>", "assistant"]


def counted(dialect: Dialect, pieces: list[list[str]], *, opened: bool = False, finish: str = "stop") -> int:
    """Thought tokens of an answer whose tokens come in pieces of one or several."""
    answer = ChatAnswer(dialect.parser(TOOLS, opened=opened))
    spent = TokenCount(Prompt([1], {}), [answer])
    for number, tokens in enumerate(pieces):
        last = number == len(pieces) - 1
        piece = TextDelta(0, "".join(tokens), [0] * len(tokens), [], finish if last else None)
        spent.take(piece)
        answer.take(piece)
    shown = usage([spent])
    assert shown.completion_tokens == sum(map(len, pieces))
    return shown.completion_tokens_details.reasoning_tokens


def singly(*tokens: str) -> list[list[str]]:
    return [[token] for token in tokens]


@pytest.mark.parametrize(
    ("pieces", "opened", "thought"),
    [
        (singly("<think>", "Let", " me", " see", "</think>", "\n\n", "So", "."), False, 4),
        (singly("Let", " me", "\n", " see", "</think>", "\n", *CALL), True, 4),
        (singly("<think>", "\n\n", "</think>", "\n\n", "So"), False, 0),
        (singly("So", " <think>", "no", "</think>"), False, 0),
        (singly("Let", " me", " see"), True, 3),
        ([["<think>", "Let", " me"], [" see", "</think>", "So..", "."], ["!"]], False, 5),
    ],
    ids=["thought", "opened", "empty", "later", "cut", "several"],
)
def test_thoughts_between_tags(pieces: list[list[str]], opened: bool, thought: int) -> None:
    dialect = Dialect("hermes", THINK, described=False)
    assert (
        counted(dialect, pieces, opened=opened, finish="length" if len(pieces) == 3 and opened else "stop") == thought
    )


def test_thoughts_in_a_channel_of_their_own() -> None:
    dialect = Dialect("harmony", None, described=False)
    final = ["<|channel|>", "final", "<|message|>", "So", "."]
    assert counted(dialect, singly(*HARMONY, *final)) == 6  # with the three that open the channel
    assert counted(dialect, singly(*final)) == 0


def test_a_model_without_thoughts_has_none() -> None:
    assert counted(Dialect("hermes", None, described=False), singly("Let", " me", *CALL)) == 0
