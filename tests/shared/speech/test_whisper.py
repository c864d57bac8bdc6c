"""What Whisper's authors do about ill transcripts, and when words were said: as Transformers has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shared.speech.engine_requests import transcribe_together, window_request
from transformers import WhisperForConditionalGeneration
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from tessera.hub.store import ModelDirectory
from tessera.speech.transcription.loading import load_transcriber
from tessera.speech.transcription.measures import compression_ratio
from tessera.speech.transcription.queue import TranscriptionQueue
from tessera.speech.transcription.transcriber import WindowRequest
from tessera.speech.transcription.whisper.model import WhisperTranscriber
from tessera.speech.transcription.whisper.segments import FallbackThresholds
from tessera.speech.transcription.whisper.word_times import cheapest_path, split_words
from tessera.wire.engine import Array, Transcribe, Transcript

CPU = torch.device("cpu")
NONE = FallbackThresholds(None, None, None)
ALWAYS_ILL = FallbackThresholds(compression_ratio=None, avg_logprob=0.0, no_speech=None)


@pytest.fixture(scope="module")
def loaded(transcription_model: ModelDirectory) -> WhisperTranscriber:
    torch.set_num_threads(1)
    made = load_transcriber(transcription_model.path, transcription_model.card, device=CPU)
    assert isinstance(made, WhisperTranscriber)
    return made


@pytest.fixture
def transcriber(loaded: WhisperTranscriber) -> Iterator[WhisperTranscriber]:
    limits = loaded.thresholds
    yield loaded
    loaded.thresholds = limits


def english(samples: np.ndarray[Any, Any], **options: Any) -> WindowRequest:
    return window_request(samples, language="en", **options)


def test_the_limits_of_a_directory_are_its_own(transcriber: WhisperTranscriber) -> None:
    assert transcriber.thresholds == FallbackThresholds(compression_ratio=1000.0, avg_logprob=-1000.0, no_speech=0.6)
    assert FallbackThresholds() == FallbackThresholds(compression_ratio=2.4, avg_logprob=-1.0, no_speech=0.6)


def test_an_ill_transcript_is_tried_again_hotter_up_to_one(transcriber: WhisperTranscriber, melody: Any) -> None:
    (well,) = transcribe_together(transcriber, english(melody(5.0)))
    assert well.segments[0].temperature == 0.0
    transcriber.thresholds = ALWAYS_ILL
    (ill,) = transcribe_together(transcriber, english(melody(5.0)))
    assert ill.segments[0].temperature == 1.0
    assert ill.segments[0].token_ids != well.segments[0].token_ids
    assert ill.context == [], "what may be invented is not told to the next window"
    assert well.context == well.segments[0].token_ids
    (asked,) = transcribe_together(transcriber, english(melody(5.0), temperature=0.4))
    assert asked.segments[0].temperature == 0.4, "a temperature that was asked for is kept"


@pytest.mark.slow
def test_only_ill_windows_are_tried_again_and_the_others_stay_as_they_are(
    transcriber: WhisperTranscriber, melody: Any
) -> None:
    pieces = [english(melody(5.0, base=base), seed=seed) for seed, base in enumerate((150.0, 260.0, 370.0, 480.0))]
    scores = sorted(window.segments[0].avg_logprob for window in transcribe_together(transcriber, *pieces))
    transcriber.thresholds = replace(ALWAYS_ILL, avg_logprob=(scores[1] + scores[2]) / 2)
    together = transcribe_together(transcriber, *pieces)
    alone = [transcribe_together(transcriber, one)[0] for one in pieces]
    assert sum(window.segments[0].temperature == 0 for window in together) >= 2
    assert any(window.segments[0].temperature > 0 for window in together)
    assert [window.segments[0].token_ids for window in together] == [window.segments[0].token_ids for window in alone]
    assert [window.segments[0].temperature for window in together] == [
        window.segments[0].temperature for window in alone
    ]


def test_a_repetition_is_ill_and_silence_says_nothing(transcriber: WhisperTranscriber, melody: Any) -> None:
    transcriber.thresholds = replace(NONE, compression_ratio=0.01)
    assert transcribe_together(transcriber, english(melody(5.0)))[0].segments[0].temperature == 1.0
    transcriber.thresholds = FallbackThresholds(compression_ratio=None, avg_logprob=0.0, no_speech=0.0)
    (silent,) = transcribe_together(transcriber, english(melody(5.0)))
    assert (silent.segments, silent.advance_s) == ([], 5.0)
    assert compression_ratio("ha ha " * 50) > 2.4 > compression_ratio("the quick brown fox jumps over the lazy dog")
    assert compression_ratio("") == 1.0


def test_the_measures_are_those_of_transformers(transcriber: WhisperTranscriber, melody: Any) -> None:
    features = transcriber.features([melody(5.0)])
    model = transcriber.model
    prompt, _ = transcriber.prompt(english(melody(5.0)), "en")
    (window,) = transcribe_together(transcriber, english(melody(5.0)))
    written = window.segments[0].token_ids
    sequence = torch.tensor([prompt + written])
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=sequence).logits[0]
    token = transcriber.rules.no_timestamps
    assert token is not None
    assert window.segments[0].no_speech_prob == pytest.approx(float(logits[0].softmax(-1)[token - 1]), rel=1e-3)
    scores = []
    for place, chosen in enumerate(written):
        allowed = logits[len(prompt) - 1 + place][None].clone()
        transcriber.rules.apply(allowed, [written[:place]], [False])
        scores.append(float(allowed.log_softmax(-1)[0, chosen]))
    assert window.segments[0].avg_logprob == pytest.approx(sum(scores) / len(scores), abs=0.05)


@pytest.mark.parametrize("base", [300.0, 440.0])
def test_words_begin_and_end_when_transformers_says(
    base: float, transcriber: WhisperTranscriber, transcription_model: ModelDirectory, melody: Any
) -> None:
    samples = melody(24.0, base=base)
    model = WhisperForConditionalGeneration.from_pretrained(
        transcription_model.path, attn_implementation="eager"
    ).eval()
    model.generation_config.logprob_threshold = None
    model.generation_config.alignment_heads = [list(head) for head in transcriber.alignment_heads]
    theirs = model.generate(
        transcriber.features([samples]),
        language="zh",  # where every character is a word: all times are seen
        task="transcribe",
        return_timestamps=True,
        return_token_timestamps=True,
        return_segments=True,
        num_frames=2400,
        force_unique_generate_call=True,
    )
    tokens = [token for segment in theirs["segments"][0] for token in segment["tokens"].tolist()]
    times = [float(time) for segment in theirs["segments"][0] for time in segment["token_timestamps"]]
    begins = [time for token, time in zip(tokens, times, strict=True) if token < transcriber.end_token]
    asked = replace(english(samples, timestamps=True, words=True, open_end=True), language="zh")
    (window,) = transcribe_together(transcriber, asked)
    words = [word for segment in window.segments for word in segment.words]
    assert [token for word in words for token in word.token_ids] == [t for t in tokens if t < transcriber.end_token]
    assert len(words) > 10
    place = 0
    for word in words:
        assert word.start == pytest.approx(begins[place], abs=0.021)
        place += len(word.token_ids)
        assert word.start <= word.end


@given(rows=st.integers(1, 12), columns=st.integers(1, 30), seed=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_cheapest_path_is_that_of_transformers(rows: int, columns: int, seed: int) -> None:
    cost = np.random.default_rng(seed).standard_normal((rows, columns))
    for ours, theirs in zip(cheapest_path(cost), _dynamic_time_warping(cost), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_words_are_split_at_blanks_with_their_punctuation() -> None:
    pieces = [" Hel", "lo", ",", " (", "you", ")", " there", ".", ' "', "Hi", "!", '"']
    tokens = list(range(len(pieces)))

    def decode(some: list[int]) -> str:
        return "".join(pieces[token] for token in some)

    spoken = ["".join(pieces[token] for token in word) for word in split_words(tokens, decode, "en")]
    assert spoken == [" Hello,", " (you)", " there.", ' "Hi!"']
    assert len(split_words([0, 1, 6], decode, "zh")) == 3


def test_bytes_of_one_character_stay_together() -> None:
    data = ["x", "\N{REPLACEMENT CHARACTER}", "y"]

    def decode(some: list[int]) -> str:
        return "é" if some == [1, 1] else "".join(data[token] for token in some)

    assert split_words([0, 1, 1, 2], decode, "zh") == [[0], [1, 1], [2]]


def test_without_cuts_a_window_is_told_what_was_said_before(
    transcriber: WhisperTranscriber, melody: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, ...]] = []
    original = type(transcriber).prompt

    def spying(self: WhisperTranscriber, one: WindowRequest, language: str | None) -> tuple[list[int], int]:
        begun.append(one.context)
        return original(self, one, language)

    monkeypatch.setattr(type(transcriber), "prompt", spying)
    queue = TranscriptionQueue(transcriber, max_windows=2)
    sound = melody(70.0)
    audio = Array(dtype="float32", shape=[sound.size], data=sound.tobytes())
    queue.submit(Transcribe(request_id="x", audio=audio, language="en"))
    said: list[int] = []
    while len(queue):
        for answer in queue.step():
            assert isinstance(answer, Transcript)
            assert begun[-1] == tuple(said)
            said += [token for segment in answer.segments for token in segment.token_ids]
    assert len(begun) >= 3
    prompt, start = transcriber.prompt(english(sound[:16_000], context=tuple(range(500))), "en")
    assert start == transcriber.model.config.max_target_positions // 2 - 1
    assert prompt[start] == transcriber.start_token
    assert prompt[start - 1] == 499
