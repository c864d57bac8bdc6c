"""What numbers, symbols and abbreviations become before a model that has only letters reads them."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_speech.characters import Characters
from tessera_speech.spoken import cardinal, ordinal, spoken, year


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            "Dr. Lee paid $12.50 for 3 apples at 3:45 p.m. on May 2nd.",
            "doctor Lee paid twelve dollars and fifty cents for three apples at three forty five pee em on May second.",
        ),
        ("It costs $3.5 million (or €1)!", "It costs three point five million dollars, or one euro!"),
        ("0.5 GB at -5 °C", "zero point five gigabytes at minus five degrees celsius."),
        ("1,234,567 people", "one million two hundred and thirty four thousand five hundred and sixty seven people."),
        ("Room #12 in the 1990s; 7:00", "Room number twelve in the nineteen nineties, seven o'clock."),
        ("HTTP, a GPU and NASA", "aitch tee tee pee, a gee pee you and NASA."),
        ("A well-known 5-year-old.\nA café", "A well known five year old.\nA cafe."),
        ("nothing to change.", "nothing to change."),
    ],
)
def test_what_is_written_is_said(written: str, said: str) -> None:
    assert spoken(written) == said


def test_numbers_have_names() -> None:
    assert [cardinal(number) for number in (0, 17, 40, 101, 1_000_015)] == [
        "zero",
        "seventeen",
        "forty",
        "one hundred and one",
        "one million fifteen",
    ]
    assert [ordinal(number) for number in (1, 12, 20, 23, 100)] == [
        "first",
        "twelfth",
        "twentieth",
        "twenty third",
        "one hundredth",
    ]
    assert [year(number) for number in (1066, 1900, 1905, 2000, 2005, 2026)] == [
        "ten sixty six",
        "nineteen hundred",
        "nineteen oh five",
        "two thousand",
        "two thousand five",
        "twenty twenty six",
    ]


@given(st.text(max_size=300))
def test_no_digit_is_left_and_nothing_fails(text: str) -> None:
    assert not set(spoken(text)) & set(string.digits)


@pytest.mark.parametrize(
    ("language", "characters", "written_out"),
    [
        ("eng", string.ascii_lowercase + " .", True),
        ("eng", string.ascii_lowercase + string.digits, False),
        ("deu", "a", False),
    ],
)
def test_only_english_letters_without_digits_are_written_out(
    language: str, characters: str, written_out: bool, tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(["<pad>", *characters])}))
    settings = {"language": language, "phonemize": False, "add_blank": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Characters(tmp_path).readable("2 cats") == ("two cats." if written_out else "2 cats")
