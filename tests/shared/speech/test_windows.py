"""Sentences that are spoken in windows, alone or together with others, sound as if each had been spoken whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.shared.speech.engine_requests import all_answers
from transformers import VitsConfig, VitsModel

from tessera.errors import InvalidRequestError
from tessera.hub.store import ModelDirectory
from tessera.speech.engine import SpeechEngine
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import Synthesizer
from tessera.speech.synthesis.vocoder_windows import VocoderProgress
from tessera.wire.engine import Audio, Failed, Synthesize, Utterance

CPU = torch.device("cpu")
LONG = [index % 40 for index in range(161)]


@pytest.fixture
def engine(make_engine: Callable[[int], SpeechEngine]) -> SpeechEngine:
    return make_engine(16)


def asked(name: str, *sentences: list[int], **options: Any) -> Synthesize:
    return Synthesize(request_id=name, sentences=[Utterance(token_ids=ids) for ids in sentences], **options)


def samples(made: list[Any], name: str) -> np.ndarray[Any, Any]:
    parts = [np.frombuffer(a.samples.data, "<f4") for a in made if isinstance(a, Audio) and a.request_id == name]
    return np.concatenate(parts)


@given(
    frames=st.integers(1, 900),
    reach=st.one_of(st.none(), st.integers(0, 40)),
    frame_s=st.sampled_from([0.004, 0.0116]),
    ahead_s=st.floats(0, 20),
)
def test_windows_cover_a_sentence_once_with_all_the_context_there_is(
    frames: int, reach: int | None, frame_s: float, ahead_s: float
) -> None:
    sounding, covered = VocoderProgress(frames, reach=reach, frame_s=frame_s, ahead_s=ahead_s), []
    while not sounding.finished:
        window = sounding.window
        fresh = sounding.advance()
        begin, end = window.start + fresh.start, window.start + fresh.stop
        assert 0 <= window.start <= begin < end <= window.stop <= frames
        assert window.start == 0 or begin - window.start >= (reach or 0)
        assert window.stop == frames or window.stop - end >= (reach or 0)
        covered += range(begin, end)
    assert covered == list(range(frames))


SHAPES = [
    {},
    {"resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3},
    {"upsample_rates": [8, 8, 4], "upsample_kernel_sizes": [16, 16, 8]},
    {"upsample_rates": [5, 3], "upsample_kernel_sizes": [11, 7]},
    {"upsample_rates": [4, 4], "upsample_kernel_sizes": [7, 8]},  # cannot be cut: 4 frames are not 16 samples
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sentence_in_windows_is_the_sentence_of_transformers(
    shape: dict[str, Any], synthesis_model: ModelDirectory
) -> None:
    torch.set_num_threads(1)
    config = VitsConfig.from_pretrained(synthesis_model.path, **shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = VitsModel(config).eval()
    with torch.no_grad():
        model.duration_predictor.flows[0].translate.fill_(-0.8)
        model.decoder.conv_post.weight.mul_(0.05)
        torch.manual_seed(5)
        expected = model(torch.tensor([LONG]), speaker_id=1).waveform[0]
    synthesizer = Synthesizer(model, synthesis_model.card)
    latents = synthesizer.latents(LONG, voices={1: 1.0}, speed=1.0, random=RandomStream(5, CPU))
    sounding, parts = synthesizer.vocoder_progress(latents), []
    if synthesizer.reach is None:
        assert sounding.window == slice(0, sounding.frames)
        parts.append(synthesizer.decode([(latents, sounding.window)])[0])
    else:
        while not sounding.finished:
            (decoded,) = synthesizer.decode([(latents, sounding.window)])
            fresh = sounding.advance()
            parts.append(decoded[fresh.start * synthesizer.hop : fresh.stop * synthesizer.hop])
        assert len(parts) >= 3
        assert sum(latents.token_frames) * synthesizer.hop == expected.numel()
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=0)


def test_the_first_sound_is_a_small_part_of_a_long_sentence(engine: SpeechEngine) -> None:
    engine.submit(asked("long", LONG, speed=0.25))
    parts = [np.frombuffer(answer.samples.data, "<f4").size for answer in all_answers(engine)]
    assert len(parts) >= 4
    assert parts[0] <= 0.05 * sum(parts)


@pytest.mark.slow
def test_later_sentences_have_longer_windows_of_the_same_lengths(engine: SpeechEngine) -> None:
    engine.submit(asked("long", LONG, LONG, LONG, speed=0.25))
    made: dict[int, list[int]] = {}
    for answer in all_answers(engine):
        made.setdefault(answer.sentence, []).append(answer.frames)
    first, second, third = made.values()
    assert first[0] < 100 < second[0] <= third[0]
    frame_s = engine.synthesizer.hop / engine.synthesizer.sample_rate
    windows = {
        VocoderProgress(10_000, reach=0, frame_s=frame_s, ahead_s=ahead_s / 10).window.stop for ahead_s in range(1, 200)
    }
    assert len(windows) <= 6, "few lengths, so that windows of several texts can share a forward"


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 3, 8])
def test_requests_that_are_spoken_together_do_not_hear_each_other(engine: SpeechEngine, together: int) -> None:
    engine.synthesizer.windows_per_forward = together
    messages = [
        asked(
            f"{number}",
            LONG[number:],
            LONG[: 20 * number + 5],
            seed=number,
            speed=0.5 + number / 4,
            voices={0: 1.0, 1: number / 3},
        )
        for number in range(5)
    ]
    alone = []
    engine_together, engine.synthesizer.windows_per_forward = engine.synthesizer.windows_per_forward, 1
    for message in messages:
        engine.submit(message)
        alone.append(samples(list(all_answers(engine)), message.request_id))
    engine.synthesizer.windows_per_forward = engine_together
    for message in messages:
        engine.submit(message)
    made = list(all_answers(engine))
    for message, expected in zip(messages, alone, strict=True):
        mine = samples(made, message.request_id)
        assert mine.size == expected.size
        assert np.abs(mine - expected).max() < 1e-5, "no more than the rounding of another order of sums"


@pytest.mark.slow
def test_a_forward_is_shared(engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.synthesizer.windows_per_forward = 8
    shared, original = [], engine.synthesizer.decode
    monkeypatch.setattr(
        engine.synthesizer, "decode", lambda windows: (shared.append(len(windows)), original(windows))[1]
    )
    for number in range(6):
        engine.submit(asked(str(number), LONG, seed=number))
    made = list(all_answers(engine))
    assert max(shared) == 6
    assert sum(answer.last for answer in made) == 6


def test_a_fault_in_a_shared_forward_ends_one_request(engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.synthesizer.windows_per_forward = 8
    original = engine.synthesizer.decode
    calls = iter([True])

    def failing(windows: Any) -> Any:
        if next(calls, False):
            raise RuntimeError("secret detail")
        return original(windows)

    monkeypatch.setattr(engine.synthesizer, "decode", failing)
    for name in ("first", "second", "third"):
        engine.submit(asked(name, LONG))
    made = list(all_answers(engine))
    assert [answer.request_id for answer in made if isinstance(answer, Failed)] == ["first"]
    assert {answer.request_id for answer in made if isinstance(answer, Audio) and answer.last} == {"second", "third"}


def test_a_cancel_takes_effect_within_a_sentence(engine: SpeechEngine) -> None:
    engine.submit(asked("long", LONG, speed=0.25))
    engine.submit(asked("other", LONG))
    first = list(engine.step())
    engine.cancel("long")
    rest = list(all_answers(engine))
    assert {answer.request_id for answer in first} == {"long"}
    assert {answer.request_id for answer in rest} == {"other"}


def test_tokens_last_as_long_as_is_said_and_pauses_come_after_them(engine: SpeechEngine) -> None:
    message = Synthesize(
        request_id="x",
        sentences=[
            Utterance(pause_s=0.5),
            Utterance(token_ids=LONG, pause_s=0.25),
            Utterance(token_ids=LONG, rates=[1.0] * 80 + [0.25] * 81),
        ],
        seed=4,
    )
    engine.submit(message)
    made = list(all_answers(engine))
    rate = engine.synthesizer.sample_rate
    lengths = [sum(np.frombuffer(a.samples.data, "<f4").size for a in made if a.sentence == n) for n in range(3)]
    told = [[a.token_samples for a in made if a.sentence == n and a.token_samples] for n in range(3)]
    assert (lengths[0], told[0]) == (rate // 2, [])
    assert sum(told[1][0]) == lengths[1] - rate // 4
    assert sum(told[2][0]) == lengths[2]
    assert sum(told[2][0][80:]) > 2.5 * sum(told[1][0][80:]), "the second half is four times as slow"
    assert not np.any(samples(made, "x")[: rate // 2])


def test_a_mixture_lies_between_its_voices(engine: SpeechEngine) -> None:
    synthesizer = engine.synthesizer

    def embedding(voices: dict[int, float]) -> torch.Tensor:
        found = synthesizer.latents([0, 5, 0], voices=voices, speed=1.0, random=RandomStream(0, CPU)).speaker_E1
        assert found is not None
        return found

    torch.testing.assert_close(
        embedding({0: 1.0, 1: 3.0}), 0.25 * embedding({0: 1.0}) + 0.75 * embedding({1: 1.0}), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize(
    "message",
    [
        asked("x", [1, 2], voices={}),
        asked("x", [1, 2], voices={2: 1.0}),
        Synthesize(request_id="x", sentences=[Utterance(token_ids=[1, 2], rates=[1.0])]),
    ],
)
def test_voices_and_rates_that_cannot_be_fail_their_request(message: Synthesize, engine: SpeechEngine) -> None:
    engine.submit(message)
    (answer,) = all_answers(engine)
    assert isinstance(answer, Failed)


def test_an_endless_pause_is_refused(engine: SpeechEngine) -> None:
    with pytest.raises(InvalidRequestError, match="pause"):
        engine.submit(Synthesize(request_id="x", sentences=[Utterance(pause_s=61.0)]))
