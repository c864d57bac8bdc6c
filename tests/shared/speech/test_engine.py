"""The engine takes turns, forgets what is cancelled, holds no more than it may, and keeps faults to their request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.shared.speech.engine_requests import all_answers

from tessera.errors import InvalidRequestError, OverloadedError
from tessera.speech.engine import SpeechEngine
from tessera.speech.transcription.queue import TranscriptionQueue
from tessera.wire.engine import (
    Array,
    Audio,
    Embed,
    Failed,
    Synthesize,
    Transcribe,
    Transcript,
    Utterance,
)

CPU = torch.device("cpu")
SENTENCE = [0, 5, 0]
LIMIT = 4


@pytest.fixture
def engine(make_engine: Callable[[int], SpeechEngine]) -> SpeechEngine:
    return make_engine(LIMIT)


def speech(name: str, sentences: int = 1, **options: Any) -> Synthesize:
    return Synthesize(request_id=name, sentences=[Utterance(token_ids=SENTENCE)] * sentences, **options)


def recording(name: str, samples: np.ndarray[Any, Any], **options: Any) -> Transcribe:
    audio = Array(dtype="float32", shape=[samples.size], data=samples.tobytes())
    return Transcribe(request_id=name, audio=audio, **options)


def test_texts_take_turns_after_every_sentence_beside_recordings(engine: SpeechEngine, melody: Any) -> None:
    engine.submit(speech("a", 3))
    engine.submit(recording("b", melody(1.0)))
    engine.submit(speech("c", 2))
    made = [(answer.request_id, answer.last) for answer in all_answers(engine)]
    assert [one for one in made if one[0] != "b"] == [
        ("a", False),
        ("c", False),
        ("a", False),
        ("c", True),
        ("a", True),
    ]
    assert ("b", True) in made


def test_a_crowd_of_texts_of_one_key_does_not_delay_another(make_engine: Callable[[int], SpeechEngine]) -> None:
    engine = make_engine(64)
    for number in range(20):
        engine.submit(speech(f"many-{number}", 2, tenant="many"))
    list(engine.step())
    engine.submit(speech("new", 2, tenant="new"))
    ended = [(answer.request_id, answer.last) for answer in all_answers(engine)]
    assert ended.index(("new", True)) <= 3, "every second turn is its own"
    assert len({name for name, last in ended if last}) == 21


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_crowd_of_recordings_of_one_key_does_not_delay_another(
    make_engine: Callable[[int], SpeechEngine], melody: Any, at_once: int
) -> None:
    queue = TranscriptionQueue(make_engine(1).transcriber, max_windows=at_once)
    for number in range(12):
        queue.submit(recording(f"many-{number}", melody(1.0), tenant="many"))
    queue.step()
    queue.submit(recording("new", melody(1.0), tenant="new"))
    ended: list[str] = []
    while len(queue):
        ended += [answer.request_id for answer in queue.step() if isinstance(answer, Transcript) and answer.last]
    assert ended.index("new") <= at_once + 1, "it got the first place that was free"
    assert len(ended) == 13


def test_a_long_recording_of_one_key_shares_the_places_with_another(
    make_engine: Callable[[int], SpeechEngine], melody: Any
) -> None:
    queue = TranscriptionQueue(make_engine(1).transcriber, max_windows=2)
    for number in range(4):
        windows = [(16_000 * second, 16_000 * (second + 1)) for second in range(4)]
        queue.submit(recording(f"many-{number}", melody(4.0), windows=windows, language="en", tenant="many"))
    queue.step()
    windows = [(0, 16_000), (16_000, 32_000)]
    queue.submit(recording("new", melody(2.0), windows=windows, language="en", tenant="new"))
    ended: list[str] = []
    while len(queue):
        ended += [answer.request_id for answer in queue.step() if isinstance(answer, Transcript) and answer.last]
    assert ended.index("new") <= 2


def test_a_full_engine_still_takes_another_keys_request(engine: SpeechEngine, melody: Any) -> None:
    for number in range(LIMIT):
        engine.submit(speech(f"many-{number}", tenant="many"))
    with pytest.raises(OverloadedError):
        engine.submit(recording("one too many", melody(1.0), tenant="many"))
    for number in range(LIMIT // 2):
        engine.submit(speech(f"new-{number}", tenant="new"))
    with pytest.raises(OverloadedError):
        engine.submit(speech("more than its share", tenant="new"))
    assert {answer.request_id for answer in all_answers(engine) if not isinstance(answer, Failed)} == {
        *(f"many-{number}" for number in range(LIMIT)),
        *(f"new-{number}" for number in range(LIMIT // 2)),
    }


def test_a_cancel_takes_effect_at_the_next_unit(engine: SpeechEngine) -> None:
    engine.submit(speech("long", 50))
    engine.submit(speech("short", 2))
    first = list(engine.step())
    engine.cancel("long")
    engine.cancel("never seen")
    assert [answer.request_id for answer in [*first, *all_answers(engine)]] == ["long", "short", "short"]


def test_a_full_queue_says_when_to_come_back(engine: SpeechEngine) -> None:
    for number in range(LIMIT):
        engine.submit(speech(str(number)))
    with pytest.raises(OverloadedError) as caught:
        engine.submit(speech("one too many"))
    assert caught.value.retry_after
    engine.cancel("0")
    engine.submit(speech("now there is room"))


def test_a_fault_ends_its_own_request_only(engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    original = engine.synthesizer.latents

    def failing(tokens: list[int], *, voices: dict[int, float], **options: Any) -> Any:
        if 1 in voices:
            raise RuntimeError("secret detail")
        return original(tokens, voices=voices, **options)

    monkeypatch.setattr(engine.synthesizer, "latents", failing)
    engine.submit(speech("ill", 2, voices={1: 1.0}))
    engine.submit(speech("well", 2))
    made = list(all_answers(engine))
    failed = [answer for answer in made if isinstance(answer, Failed)]
    assert [answer.request_id for answer in failed] == ["ill"]
    assert "secret" not in failed[0].error.message
    assert [answer.request_id for answer in made if isinstance(answer, Audio)] == ["well", "well"]


def test_the_same_seed_gives_the_same_samples_whatever_runs_beside_it(engine: SpeechEngine, melody: Any) -> None:
    def spoken(*others: Any) -> list[bytes]:
        for other in others:
            engine.submit(other)
        engine.submit(speech("mine", 3, seed=42))
        return [a.samples.data for a in all_answers(engine) if isinstance(a, Audio) and a.request_id == "mine"]

    alone = spoken()
    assert spoken(speech("x", 5, seed=1), recording("y", melody(2.0), temperature=1.0, seed=9)) == alone
    assert len({*alone}) == 3, "sentences of one request continue its random numbers"


def test_a_long_recording_is_transcribed_window_by_window(engine: SpeechEngine, melody: Any) -> None:
    engine.submit(recording("long", melody(75.0)))
    made = [answer for answer in all_answers(engine) if isinstance(answer, Transcript)]
    assert len(made) >= 3
    assert [answer.last for answer in made] == [False] * (len(made) - 1) + [True]
    segments = [segment for answer in made for segment in answer.segments]
    assert all(0 <= segment.start <= segment.end <= 75.0 for segment in segments)
    assert segments[-1].end > 45.0
    assert len({answer.language for answer in made}) == 1, "the language is detected once"
    assert engine.metrics()["transcribed_audio_seconds_total"] == pytest.approx(75.0, abs=0.1)


def test_a_tail_that_is_too_short_to_hold_a_word_is_dropped(engine: SpeechEngine, melody: Any) -> None:
    engine.transcriber.rules.no_timestamps = None  # a model without timestamps: windows are exactly 30 s
    engine.submit(recording("tail", melody(30.05)))
    assert len([answer for answer in all_answers(engine) if isinstance(answer, Transcript)]) == 1


SECOND = 16_000


def told(engine: SpeechEngine) -> dict[str, list[Any]]:
    """Segments of each request; its last message came last."""
    found: dict[str, list[Any]] = {}
    ended: set[str] = set()
    for answer in all_answers(engine):
        assert isinstance(answer, Transcript)
        assert answer.request_id not in ended
        found.setdefault(answer.request_id, []).extend(answer.segments)
        if answer.last:
            ended.add(answer.request_id)
    assert ended == set(found)
    return found


def tokens_of(found: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
    return {name: [segment.token_ids for segment in segments] for name, segments in found.items()}


@pytest.mark.slow
def test_windows_of_one_recording_run_together_and_are_told_in_order(engine: SpeechEngine, melody: Any) -> None:
    sound = melody(40.0)
    cuts = [(number * 2 * SECOND, (number * 2 + 1 + number % 2) * SECOND) for number in range(20)]
    engine.submit(recording("all", sound, windows=cuts, language="en"))
    list(engine.step())
    assert engine._transcriptions._batch.room == 0, "all places are taken by one recording"
    segments = told(engine)["all"]
    assert [segment.seek for segment in segments] == sorted(segment.seek for segment in segments)
    alone = []
    for first, end in cuts:
        engine.submit(recording("one", sound[first:end], language="en", timestamps=True, windows=[(0, end - first)]))
        alone += told(engine)["one"]
    assert [segment.token_ids for segment in segments] == [segment.token_ids for segment in alone]


@pytest.mark.slow
def test_a_short_recording_does_not_wait_for_a_long_one(engine: SpeechEngine, melody: Any) -> None:
    cuts = [(number * SECOND, (number + 1) * SECOND) for number in range(60)]
    engine.submit(recording("long", melody(60.0), windows=cuts, language="en"))
    list(engine.step())
    engine.submit(recording("short", melody(1.0), language="en"))
    order = [(answer.request_id, answer.last) for answer in all_answers(engine)]
    assert order.index(("short", True)) < len(order) - 3


def test_the_language_is_detected_in_the_first_window_for_all(engine: SpeechEngine, melody: Any) -> None:
    cuts = [(number * SECOND, (number + 1) * SECOND) for number in range(6)]
    sound = melody(6.0)
    engine.submit(recording("x", sound[:SECOND], windows=[(0, SECOND)]))
    (first,) = [answer for answer in all_answers(engine) if isinstance(answer, Transcript)]
    engine.submit(recording("y", sound, windows=cuts))
    made = [answer for answer in all_answers(engine) if isinstance(answer, Transcript)]
    assert {answer.language for answer in made} == {first.language}


def test_a_cancel_frees_the_places_at_once(engine: SpeechEngine, melody: Any) -> None:
    cuts = [(number * SECOND, (number + 1) * SECOND) for number in range(40)]
    engine.submit(recording("gone", melody(40.0), windows=cuts, language="en"))
    list(engine.step())
    engine.cancel("gone")
    assert not engine.has_work()
    assert engine._transcriptions._batch.room == 16
    engine.submit(recording("next", melody(1.0), language="en"))
    assert list(told(engine)) == ["next"]


def test_a_fault_in_a_shared_step_ends_its_own_recording_only(
    engine: SpeechEngine, melody: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = {name: melody(2.0, base=base) for name, base in (("a", 200.0), ("b", 300.0))}
    expected = {}
    for name, samples in well.items():
        engine.submit(recording(name, samples, language="en"))
        expected |= told(engine)
    ill = melody(3.0)
    original = engine.transcriber.encode

    def failing(samples: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        if any(one.size == ill.size for one in samples):
            raise RuntimeError("secret detail")
        return original(samples)

    monkeypatch.setattr(engine.transcriber, "encode", failing)
    engine.submit(recording("a", well["a"], language="en"))
    engine.submit(recording("ill", ill, language="en"))
    engine.submit(recording("b", well["b"], language="en"))
    made = list(all_answers(engine))
    (failed,) = [answer for answer in made if isinstance(answer, Failed)]
    assert failed.request_id == "ill"
    assert "secret" not in failed.error.message
    transcripts = {answer.request_id: answer.segments for answer in made if isinstance(answer, Transcript)}
    assert tokens_of(transcripts) == tokens_of(expected)
    engine.submit(recording("after", well["a"], language="en"))
    engine.submit(recording("beside", well["b"], language="en"))
    assert tokens_of(told(engine)) == tokens_of({"after": expected["a"], "beside": expected["b"]})


def test_metrics_tell_waiting_from_running(engine: SpeechEngine) -> None:
    engine.submit(speech("a", 2))
    engine.submit(speech("b", 2))
    list(engine.step())
    metrics = engine.metrics()
    assert (metrics["requests_waiting"], metrics["requests_running"]) == (1, 1)
    list(all_answers(engine))
    metrics = engine.metrics()
    assert (metrics["requests_waiting"], metrics["requests_running"]) == (0, 0)
    assert metrics["synthesized_audio_seconds_total"] > 0


@pytest.mark.parametrize(
    "message",
    [
        Synthesize(request_id="x", sentences=[]),
        Transcribe(request_id="x", audio=Array(dtype="float32", shape=[0], data=b"")),
        Transcribe(request_id="x", audio=Array(dtype="float32", shape=[5], data=b"1234")),
        Transcribe(request_id="x", audio=Array(dtype="int16", shape=[2], data=b"1234")),
        Embed(request_id="x", token_ids=[1]),
    ],
)
def test_messages_that_make_no_sense_are_refused(message: Any, engine: SpeechEngine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.submit(message)
    assert not engine.has_work()


def test_a_language_that_the_model_lacks_is_refused(engine: SpeechEngine, melody: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        engine.submit(recording("x", melody(1.0), language="xx"))
    assert caught.value.param == "language"
    assert not engine.has_work()


@pytest.mark.parametrize("cuts", [[], [(0, 0)], [(-1, 5)], [(0, 16_001)], [(5, 3)]])
def test_cuts_outside_the_recording_are_refused(cuts: Any, engine: SpeechEngine, melody: Any) -> None:
    with pytest.raises(InvalidRequestError):
        engine.submit(recording("x", melody(1.0), windows=cuts))
    assert not engine.has_work()
