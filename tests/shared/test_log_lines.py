"""No text of a client looks like a line of the log, moves the terminal's cursor or reorders what it shows."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.telemetry import JsonFormatter, TextFormatter, escaped

HOSTILE = "/a\n12:00:00 info    gateway  POST /v1/videos 200\r\x1b[2J\x9b2J\x7f\u2028\u2029\u202e\u2066\ud800"


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    raised = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("test", logging.INFO, "file.py", 1, message, arguments, raised)


def dangerous(text: str) -> list[str]:
    """The characters of `text` that control, separate, reorder or cannot be encoded."""
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return [
        character
        for character in text
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in bidirectional
    ]


def test_a_path_with_a_newline_stays_one_line_of_text() -> None:
    line = TextFormatter("gateway").format(record("%s %s %d", "GET", HOSTILE, 404))
    assert not dangerous(line)
    assert r"/a\u000a12:00:00" in line
    line.encode()


def test_a_field_of_a_record_is_escaped_as_its_message_is() -> None:
    made = record("uploaded")
    made.filename_given = HOSTILE
    assert not dangerous(TextFormatter("gateway").format(made))


def test_a_traceback_keeps_its_lines_and_its_text_begins_none() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        error = sys.exc_info()[1]
    lines = TextFormatter("gateway").format(record("failed", error=error)).split("\n")
    assert len(lines) > 3
    assert "Traceback" in lines[1]
    assert all(line.startswith("    ") for line in lines[1:])
    assert not dangerous("".join(lines))


def test_a_line_of_json_has_the_text_again_and_no_character_that_a_terminal_obeys() -> None:
    line = JsonFormatter("gateway").format(record("%s", HOSTILE))
    assert not dangerous(line)
    assert json.loads(line)["message"] == HOSTILE


@pytest.mark.parametrize(
    "text", ["/v1/chat/completions", "héllo wörld", "日本語", "שלום", "👩\u200d🚀 soft\u00a0space"]
)
def test_text_of_any_language_stays_as_it_is(text: str) -> None:
    assert escaped(text) == text


@given(st.text(alphabet=st.characters(categories=None)))
def test_no_text_at_all_leaves_its_line(text: str) -> None:
    assert not dangerous(TextFormatter("x").format(record("%s", text)))
    assert not dangerous(JsonFormatter("x").format(record("%s", text)))


@given(st.text())
def test_a_line_of_json_loses_nothing(text: str) -> None:
    assert json.loads(JsonFormatter("x").format(record("%s", text)))["message"] == text
