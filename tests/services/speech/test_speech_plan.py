"""From what is written to what is said: SSML, voices and their mixtures, words and when they are said."""

from __future__ import annotations

import contextlib
import json
import string
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import InvalidRequestError
from tessera_speech.synthesis import voices
from tessera_speech.text import ssml
from tessera_speech.text.characters import CharacterTokenizer
from tessera_speech.text.normalization import normalize, normalize_traced
from tessera_speech.text.say_as import say_as_words
from tessera_speech.text.speech_plan import SpeechPlan, plan_text, word_times
from tessera_speech.text.traced_text import TracedText


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "blanks"])
def letters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CharacterTokenizer:
    """An English alphabet without digits."""
    directory = tmp_path_factory.mktemp("letters")
    vocabulary = {c: i for i, c in enumerate(["<pad>", *(" " + string.ascii_lowercase + "'.,?!")])}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    settings = {"language": "eng", "phonemize": False, "add_blank": request.param}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return CharacterTokenizer(directory)


def said(plan: SpeechPlan) -> list[str]:
    """The sentences as their tokens have them."""
    alphabet = ["", *(" " + string.ascii_lowercase + "'.,?!")]
    return ["".join(alphabet[token] for token in sentence.token_ids) for sentence in plan.sentences]


def words(plan: SpeechPlan) -> list[tuple[str, str]]:
    """Each word as it is written and as it is said."""
    return [
        (mark.word, part(sentence.token_ids, mark.first, mark.last))
        for sentence, marks in zip(plan.sentences, plan.words, strict=True)
        for mark in marks
    ]


def part(tokens: list[int], first: int, last: int) -> str:
    alphabet = ["", *(" " + string.ascii_lowercase + "'.,?!")]
    return "".join(alphabet[token] for token in tokens[first : last + 1])


# ---- words


def test_words_are_found_again_in_what_is_said(letters: CharacterTokenizer) -> None:
    plan = plan_text("Dr. Lee (42) paid $3.5 million, at 3:45 p.m.! \u201cReally?\u201d \u2014 Yes.", letters)
    assert words(plan) == [
        ("Dr", "doctor"),
        ("Lee", "lee"),
        ("42", "forty two"),
        ("paid", "paid"),
        ("$3.5 million", "three point five million dollars"),
        ("at", "at"),
        ("3:45 p.m", "three forty five pee em"),
        ("Really", "really"),
        ("Yes", "yes"),
    ]


def test_offsets_are_places_in_the_text(letters: CharacterTokenizer) -> None:
    text = "One of 2 things.\n  Then, (of course) the 3rd one: 10-20 km away; it costs $5."
    for marks in plan_text(text, letters).words:
        for mark in marks:
            assert text[mark.offset : mark.offset + len(mark.word)] == mark.word


def test_times_follow_the_tokens(letters: CharacterTokenizer) -> None:
    plan = plan_text("Hello there. And on it goes.", letters)
    begin = 0
    for sentence, marks in zip(plan.sentences, plan.words, strict=True):
        samples = [100 + token for token in sentence.token_ids]
        times = word_times(marks, samples, begin=begin, rate=1000)
        assert all(word.start < word.end for word in times)
        assert all(one.end <= other.start for one, other in pairwise(times))
        assert begin / 1000 <= times[0].start
        begin += sum(samples)
        assert times[-1].end <= begin / 1000


@given(st.text(max_size=200))
def test_every_character_that_is_said_comes_from_somewhere(text: str) -> None:
    result = normalize_traced(TracedText(text))
    assert result.text == normalize(text)
    assert len(result.origins) == len(result.text)
    assert all(0 <= begin <= end <= max(len(text), begin) for begin, end in result.origins)


# ---- SSML


def test_ssml_says_what_is_in_it(letters: CharacterTokenizer) -> None:
    plan = plan_text(
        '<?xml version="1.0"?>\n<speak version="1.1" xmlns="http://www.w3.org/2001/10/synthesis" xml:lang="en-US">'
        '<p><s>Take one</s><s>Call <say-as interpret-as="telephone">555-01</say-as> now.</s></p>'
        '<break time="500ms"/>It is <sub alias="world wide web">WWW</sub> &amp; more<break strength="strong"/></speak>',
        letters,
    )
    assert said(plan) == [
        "take one.",
        "call five five five, zero one now.",
        "it is world wide web and more.",
    ]
    assert [sentence.pause_s for sentence in plan.sentences] == [0.0, 0.5, 0.7]
    assert ("WWW", "world wide web") in words(plan)
    assert ("555-01", "five five five, zero one") in words(plan)


def test_prosody_changes_the_rate_of_its_own_words(letters: CharacterTokenizer) -> None:
    plan = plan_text(
        '<speak>one <prosody rate="slow">two <prosody rate="200%">three</prosody></prosody> four</speak>', letters
    )
    (sentence,), (marks,) = plan.sentences, plan.words
    assert {mark.word: sentence.rates[mark.first] for mark in marks} == {
        "one": 1.0,
        "two": 0.75,
        "three": 1.5,
        "four": 1.0,
    }
    assert plan_text("<speak>one two</speak>", letters).sentences[0].rates == []


@pytest.mark.parametrize(
    ("rate", "factor"),
    [("x-slow", 0.5), ("fast", 1.5), ("80%", 0.8), ("+20%", 1.2), ("-50%", 0.5), ("1.25", 1.25)],
)
def test_a_rate_may_be_written_in_every_common_way(rate: str, factor: float) -> None:
    script = ssml.parse(f'<speak><prosody rate="{rate}">a</prosody></speak>')
    assert [found for _, _, found in script.rates] == pytest.approx([factor])


def test_a_break_before_everything_is_a_pause_of_its_own(letters: CharacterTokenizer) -> None:
    plan = plan_text('<speak><break time="1s"/>Hello.</speak>', letters)
    assert [(bool(s.token_ids), s.pause_s) for s in plan.sentences] == [(False, 1.0), (True, 0.0)]


@pytest.mark.parametrize(
    ("kind", "form", "text", "words_said"),
    [
        ("characters", "", "aB1", "ay, bee, one"),
        ("spell-out", "", "W3", "double you, three"),
        ("cardinal", "", "-1,234", "minus one thousand two hundred and thirty four"),
        ("ordinal", "", "21", "twenty first"),
        ("digits", "", "2026", "two zero two six"),
        ("fraction", "", "3/4", "three quarters"),
        ("telephone", "", "+1 555", "plus one, five five five"),
        ("date", "dmy", "3/4/2026", "April third, twenty twenty six"),
        ("date", "mdy", "3/4/2026", "March fourth, twenty twenty six"),
        ("date", "", "2026-11-22", "November twenty second, twenty twenty six"),
        ("time", "", "3:05", "three oh five"),
        ("currency", "", "$2.50", "two dollars and fifty cents"),
        ("unit", "", "5 kg", "five kilograms"),
    ],
)
def test_say_as_reads_it_so(kind: str, form: str, text: str, words_said: str) -> None:
    assert say_as_words(text, kind, form) == words_said


@pytest.mark.parametrize(
    ("document", "line", "column", "reason"),
    [
        ("<speak>one\n <b>two</b></speak>", 2, 2, "`b` is not supported"),
        ("<speak>one\n two", 2, 5, "malformed"),
        ("<speak><prosody rate='slow'>x</speak>", 1, 32, "malformed"),
        ("<speak>a & b</speak>", 1, 11, "malformed"),
        ("<speak>\u00e9\u00e9<b/></speak>", 1, 9, "`b` is not supported"),
        ("<speak>\n\n<break time='soon'/></speak>", 3, 1, "`time` is 'soon'"),
        ("<speak><break time='11s'/></speak>", 1, 8, "may last 10 s"),
        ("<speak>" + "<break time='10s'/>" * 7 + "</speak>", 1, 122, "together may last 60 s"),
        ("<speak><break strength='huge'/></speak>", 1, 8, "`strength` must be"),
        ("<speak><break>x</break></speak>", 1, 16, "`break` is empty"),
        ("<speak><prosody rate='quick'>x</prosody></speak>", 1, 8, "`rate` is 'quick'"),
        ("<speak><prosody rate='1%'>x</prosody></speak>", 1, 8, "must come to"),
        ("<speak><prosody pitch='high'>x</prosody></speak>", 1, 8, "no attribute `pitch`"),
        ("<speak><say-as interpret-as='song'>x</say-as></speak>", 1, 8, "`interpret-as` must be"),
        ("<speak><say-as interpret-as='ordinal'>x</say-as></speak>", 1, 40, "cannot be read as `ordinal`"),
        ("<speak><sub>x</sub></speak>", 1, 8, "`sub` needs an `alias`"),
        ("<speak><phoneme ph='x'>x</phoneme></speak>", 1, 8, "needs a model that reads phonemes"),
        ("<speak><speak>x</speak></speak>", 1, 8, "outermost"),
        ("<speak>" + "<p>" * 40, 1, 101, "nested deeper"),
        ("<speak><!DOCTYPE x></speak>", 1, 10, "malformed"),
    ],
)
def test_what_is_wrong_with_ssml_is_named_by_its_place(document: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ssml.parse(document)
    assert f"line {line}, column {column}: " in caught.value.message
    assert reason in caught.value.message
    assert (caught.value.param, caught.value.body().code) == ("input", "invalid_ssml")


def test_ssml_reads_no_files_and_grows_no_entities() -> None:
    for declaration in ('<!ENTITY x SYSTEM "file:///etc/passwd">', '<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">'):
        with pytest.raises(InvalidRequestError, match="DOCTYPE"):
            ssml.parse(f"<!DOCTYPE speak [{declaration}]><speak>&x;</speak>")


@given(st.text(alphabet="<>/&;='\" abspeakrt!-?\n", max_size=80))
def test_nonsense_is_refused_and_nothing_else(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        ssml.parse(f"<speak>{text}")


def test_only_what_begins_as_ssml_is_ssml(letters: CharacterTokenizer) -> None:
    assert said(plan_text("I <speak> now", letters)) == ["i less than speak greater than now."]
    assert not ssml.is_ssml("<speaker>")
    assert ssml.is_ssml(" \n<speak>")


def test_say_as_needs_an_english_model(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(["<pad>", *"abc 123"])}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"language": "deu", "phonemize": False}))
    with pytest.raises(InvalidRequestError, match="English"):
        plan_text("<speak><sub alias='b'>a</sub></speak>", CharacterTokenizer(tmp_path))


@pytest.mark.parametrize("text", ["<speak></speak>", "<speak><break time='1s'/></speak>", "\u6f22"])
def test_silence_alone_is_no_speech(text: str, letters: CharacterTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="no character that the model can speak"):
        plan_text(text, letters)


# ---- voices


def test_voices_are_mixed_by_weight() -> None:
    known = ["joe", "anna"]
    assert voices.mixture_of("joe+anna", known) == {0: 0.5, 1: 0.5}
    assert voices.mixture_of("joe(3) + anna(1)", known) == {0: 0.75, 1: 0.25}
    assert voices.mixture_of("alloy+ballad", known) == {0: 1.0}, "OpenAI's names stand for the same voice here"
    assert voices.mixture_of(None, known) == {0: 1.0}
    assert voices.mixture_of("a+b", ["x", "a+b"]) == {1: 1.0}, "a model's own name comes first"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("joe+carl", "no voice 'carl'"),
        ("joe+", "no part of a mixture"),
        ("joe(0)+anna", "no part of a mixture"),
        ("joe(-1)+anna", "no part of a mixture"),
        ("joe(nan)+anna", "no part of a mixture"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        voices.mixture_of(name, ["joe", "anna"])
    assert says in caught.value.message
    assert caught.value.param == "voice"


def test_one_voice_cannot_be_mixed() -> None:
    with pytest.raises(InvalidRequestError, match="has one voice"):
        voices.mixture_of("default+default", ["default"])
