"""What numbers, symbols and abbreviations become before a model that has only letters reads them."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.normalization import normalize
from tessera_speech.text.numerals import cardinal, ordinal, year
from tessera_speech.text.traced_text import TracedText


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
        (
            "Due 2026-11-22 or 3/4/1999.",
            "Due November twenty second, twenty twenty six or March fourth, nineteen ninety nine.",
        ),
        ("Sat, Nov. 21st, 2026 at 5pm", "Saturday, November twenty first, twenty twenty six at five pee em."),
        (
            "On 14 July 1789 and 24.12.2025",
            "On the fourteenth of July seventeen eighty nine and December twenty fourth, twenty twenty five.",
        ),
        ("the 2026-13-45 code", "the twenty twenty six thirteen forty five code."),
        ("Add 2 1/2 cups, 3/4 l and ½ spoon", "Add two and one half cups, three quarters l and one half spoon."),
        ("Call 555-0199 24/7", "Call five five five, zero one nine nine twenty four slash seven."),
        ("10-20 km at 5 m/s, 3 kWh", "ten to twenty kilometers at five meters per second, three kilowatt hours."),
        ("6 ft, 2 lbs, 1 m, 20 m²", "six feet, two pounds, one meter, twenty square meters."),
        ("¥500 on example.com v1.2.3", "five hundred yen on example dot com v one point two point three."),
        ("No. 7 Main St., Mt. Doom", "number seven Main street, mount Doom."),
        ("1920x1080 > 0", "nineteen twenty by one thousand eighty greater than zero."),
    ],
)
def test_what_is_written_is_said(written: str, said: str) -> None:
    assert normalize(written) == said


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
    assert not set(normalize(text)) & set(string.digits)


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
    assert CharacterTokenizer(tmp_path).normalize(TracedText("2 cats")).text == (
        "two cats." if written_out else "2 cats"
    )
