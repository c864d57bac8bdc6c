"""The models as Transformers has them: same samples, same tokens. What is not such a model is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.shared.speech.engine_requests import transcribe_together, window_request
from tests.shared.speech.fixtures import make_model
from transformers import (
    VitsModel,
    VitsTokenizer,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.cards import read_card
from tessera.hub.store import ModelDirectory
from tessera.speech.synthesis.random_stream import RandomStream
from tessera.speech.synthesis.vits import Synthesizer, load_synthesizer
from tessera.speech.transcription.loading import load_transcriber
from tessera.speech.transcription.transcriber import Transcriber, WindowRequest, WindowTranscript
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer

CPU = torch.device("cpu")
TEXTS = ["The quick brown fox jumps over the lazy dog.", "And then it sleeps, 12 hours long."]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def synthesizer(synthesis_model: ModelDirectory) -> Synthesizer:
    return load_synthesizer(synthesis_model.path, synthesis_model.card, device=CPU)


@pytest.fixture(scope="module")
def transcriber(transcription_model: ModelDirectory) -> Transcriber:
    return comparable(load_transcriber(transcription_model.path, transcription_model.card, device=CPU))


def comparable(made: Transcriber) -> Transcriber:
    """Ours has read its limits; Transformers' short form cannot have them (it fails on `logprob_threshold`)."""
    made.model.generation_config.logprob_threshold = None
    return made


def their_samples(directory: Path, seed: int, voice: int, rate: float) -> list[torch.Tensor]:
    model, tokenizer = VitsModel.from_pretrained(directory).eval(), VitsTokenizer.from_pretrained(directory)
    torch.manual_seed(seed)
    with torch.no_grad():
        return [
            model(**tokenizer(text, return_tensors="pt"), speaker_id=voice, speaking_rate=rate).waveform[0]
            for text in TEXTS
        ]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "voice", "speed"), [(0, 0, 1.0), (7, 1, 1.0), (2**40, 0, 0.5), (3, 1, 4.0)])
def test_samples_are_those_of_transformers_with_the_same_seed(
    seed: int, voice: int, speed: float, synthesizer: Synthesizer, synthesis_model: ModelDirectory
) -> None:
    expected = their_samples(synthesis_model.path, seed, voice, speed)
    tokenizer, random = VitsTokenizer.from_pretrained(synthesis_model.path), RandomStream(seed, CPU)
    for text, theirs in zip(TEXTS, expected, strict=True):
        ours = synthesizer.synthesize(tokenizer(text).input_ids, voice=voice, speed=speed, random=random)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_what_runs_between_two_sentences_does_not_change_them(
    synthesizer: Synthesizer, synthesis_model: ModelDirectory
) -> None:
    tokenizer = VitsTokenizer.from_pretrained(synthesis_model.path)
    sentences = [tokenizer(text).input_ids for text in TEXTS]

    def spoken(disturbed: bool) -> list[torch.Tensor]:
        mine, other = RandomStream(5, CPU), RandomStream(6, CPU)
        made = []
        for sentence in sentences:
            made.append(synthesizer.synthesize(sentence, voice=0, speed=1.0, random=mine))
            if disturbed:
                torch.manual_seed(99)
                synthesizer.synthesize(sentence, voice=1, speed=2.0, random=other)
                torch.randn(1000)
        return made

    for alone, beside in zip(spoken(disturbed=False), spoken(disturbed=True), strict=True):
        assert torch.equal(alone, beside)


def test_a_unit_leaves_the_processs_own_random_numbers_alone(synthesizer: Synthesizer) -> None:
    torch.manual_seed(1)
    expected = torch.randn(4)
    torch.manual_seed(1)
    synthesizer.synthesize([0, 5, 0], voice=0, speed=1.0, random=RandomStream(0, CPU))
    assert torch.equal(torch.randn(4), expected)


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0, 4.0])
def test_speed_shortens_what_is_said(speed: float, synthesizer: Synthesizer) -> None:
    tokens = [index % 40 for index in range(101)]
    normal = synthesizer.synthesize(tokens, voice=0, speed=1.0, random=RandomStream(0, CPU)).numel()
    changed = synthesizer.synthesize(tokens, voice=0, speed=speed, random=RandomStream(0, CPU)).numel()
    assert changed == pytest.approx(normal / speed, rel=0.2)


@pytest.mark.parametrize(("tokens", "voice"), [([], 0), ([10_000], 0), ([-1], 0), ([1], 2), ([1], -1)])
def test_tokens_and_voices_that_the_model_lacks_are_refused(
    tokens: list[int], voice: int, synthesizer: Synthesizer
) -> None:
    with pytest.raises(InvalidRequestError):
        synthesizer.synthesize(tokens, voice=voice, speed=1.0, random=RandomStream(0, CPU))


def tokens_of(window: WindowTranscript) -> list[int]:
    return [token for segment in window.segments for token in segment.token_ids]


def features_of(transcriber: Transcriber, samples: Any) -> torch.Tensor:
    return transcriber.extractor(samples, sampling_rate=16_000, return_tensors="pt").input_features


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 12.3, 30.0])
@pytest.mark.parametrize("language", ["en", "de", None])
def test_greedy_tokens_are_those_of_transformers(
    seconds: float, language: str | None, transcriber: Transcriber, transcription_model: ModelDirectory, melody: Any
) -> None:
    directory = transcription_model.path
    model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    model.generation_config.logprob_threshold = None
    features = WhisperFeatureExtractor.from_pretrained(directory)(
        melody(seconds), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    expected = model.generate(features, language=language, task="transcribe")[0].tolist()
    assert torch.equal(transcriber.features([melody(seconds)]), features)
    (window,) = transcribe_together(transcriber, window_request(melody(seconds), language=language))
    assert len(expected) > 10
    assert tokens_of(window) == [token for token in expected if token < model.config.eos_token_id]
    assert (window.segments[0].start, window.segments[0].end, window.advance_s) == (0.0, seconds, seconds)
    if language is None:
        spoken = model.detect_language(features)[0].item()
        assert f"<|{window.language}|>" == WhisperTokenizer.from_pretrained(directory).convert_ids_to_tokens(spoken)


def test_translations_are_those_of_transformers(transcriber: Transcriber, melody: Any) -> None:
    samples = melody(5.0)
    expected = transcriber.model.generate(features_of(transcriber, samples), language="de", task="translate")
    asked = [window_request(samples, language="de", translate=True), window_request(samples, language="de")]
    translation, transcript = transcribe_together(transcriber, *asked)
    assert tokens_of(translation) == [token for token in expected[0].tolist() if token < transcriber.end_token]
    tokens = [transcriber.prompt(one, "de")[0] for one in asked]
    task = transcriber.model.generation_config.task_to_id
    assert [prompt[2] for prompt in tokens] == [task["translate"], task["transcribe"]]
    assert translation.segments[0].avg_logprob != transcript.segments[0].avg_logprob


def test_a_prompt_reaches_the_model(transcriber: Transcriber, melody: Any) -> None:
    features = features_of(transcriber, melody(5.0))
    prompt = [transcriber.model.generation_config.prev_sot_token_id, 70, 71, 72]
    expected = transcriber.model.generate(features, language="en", task="transcribe", prompt_ids=torch.tensor(prompt))
    (window,) = transcribe_together(transcriber, window_request(melody(5.0), language="en", prompt_ids=tuple(prompt)))
    text = [token for token in expected[0].tolist() if token < transcriber.end_token]
    assert tokens_of(window) == text
    (unprompted,) = transcribe_together(transcriber, window_request(melody(5.0), language="en"))
    assert tokens_of(unprompted) != text
    (continued,) = transcribe_together(transcriber, window_request(melody(5.0), language="en", context=(70, 71, 72)))
    assert tokens_of(continued) == text, "what was said before is told in the same way"


@pytest.mark.slow
def test_a_temperature_draws_from_the_windows_own_numbers(transcriber: Transcriber, melody: Any) -> None:
    def drawn(temperature: float, seed: int, *others: WindowRequest) -> list[int]:
        mine = window_request(melody(5.0), language="en", temperature=temperature, seed=seed)
        return tokens_of(transcribe_together(transcriber, *others, mine)[-1])

    assert drawn(1.0, 1) == drawn(1.0, 1)
    assert drawn(1.0, 1) != drawn(1.0, 2)
    assert drawn(0.0, 1) == drawn(0.0, 2)
    assert drawn(1.0, 1, window_request(melody(3.0), language="de", temperature=0.7, seed=5)) == drawn(1.0, 1)


def many(melody: Any) -> list[WindowRequest]:
    """Windows that differ in all that a window can differ in."""
    prompt = (1, 70, 71, 72)
    return [
        window_request(melody(1.0), language="en"),
        window_request(melody(30.0, base=300.0), language=None, timestamps=True),
        window_request(melody(12.3, base=180.0), language="de", prompt_ids=prompt),
        window_request(melody(7.0, base=440.0), language=None),
        window_request(melody(29.0, base=500.0), language="fr", timestamps=True, words=True, context=(80, 81)),
        window_request(melody(5.0), language="en", translate=True, timestamps=True),
        window_request(melody(6.0), language="en", temperature=0.8, seed=11),
    ]


@pytest.mark.slow
def test_windows_in_one_batch_have_the_transcripts_they_have_alone(transcriber: Transcriber, melody: Any) -> None:
    pieces = many(melody)
    together = transcribe_together(transcriber, *pieces)
    for one, window in zip(pieces, together, strict=True):
        (alone,) = transcribe_together(transcriber, one)
        assert tokens_of(window) == tokens_of(alone)
        assert [(s.start, s.end, s.words) for s in window.segments] == [
            (s.start, s.end, s.words) for s in alone.segments
        ]
        assert window.language == alone.language
        assert [s.avg_logprob for s in window.segments] == pytest.approx(
            [s.avg_logprob for s in alone.segments], abs=1e-4
        )
        assert [s.no_speech_prob for s in window.segments] == pytest.approx(
            [s.no_speech_prob for s in alone.segments], abs=1e-5
        )


@pytest.mark.slow
def test_windows_join_and_leave_at_any_step_without_changing_the_others(transcriber: Transcriber, melody: Any) -> None:
    pieces = many(melody)
    batch = transcriber.batch(4)
    found: dict[int, WindowTranscript] = {}
    coming = list(enumerate(pieces))
    step = 0
    while coming or batch.room < 4:
        if coming and batch.room and step % 3 == 0:
            batch.add(*coming.pop(0))
        if step == 7:
            batch.add(99, window_request(melody(4.0), language="en"))
        if step == 12:
            batch.drop(99)
            batch.drop(1234)
        found |= batch.step()
        step += 1
    assert sorted(found) == list(range(len(pieces)))
    for number, one in enumerate(pieces):
        assert tokens_of(found[number]) == tokens_of(transcribe_together(transcriber, one)[0])


@pytest.mark.parametrize("base", [180.0, 300.0, 440.0])
def test_segments_of_a_window_are_those_of_transformers(base: float, transcriber: Transcriber, melody: Any) -> None:
    theirs = transcriber.model.generate(
        features_of(transcriber, melody(30.0, base=base)),
        language="en",
        task="transcribe",
        return_timestamps=True,
        return_segments=True,
        force_unique_generate_call=True,
    )["segments"][0]
    (window,) = transcribe_together(
        transcriber, window_request(melody(30.0, base=base), language="en", timestamps=True, open_end=True)
    )
    assert [(segment.start, segment.end) for segment in window.segments] == [
        (pytest.approx(float(segment["start"])), pytest.approx(float(segment["end"]))) for segment in theirs
    ]
    assert any(segment.token_ids for segment in window.segments)


@pytest.mark.slow
def test_windows_follow_each_other_where_transformers_would_go_on(
    transcriber: Transcriber, melody: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its long-form loop moves `seek` by frames; our advance of each window must be the same."""
    moved: list[float] = []
    original = type(transcriber.model)._retrieve_segment

    def spying(*arguments: Any, **options: Any) -> Any:
        segments, frames = original(*arguments, **options)
        moved.append(float(frames) / 100)
        return segments, frames

    monkeypatch.setattr(type(transcriber.model), "_retrieve_segment", staticmethod(spying))
    for base in range(100, 900, 50):
        transcriber.model.generate(
            features_of(transcriber, melody(30.0, base=float(base))),
            language="en",
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            force_unique_generate_call=True,
        )
        (window,) = transcribe_together(
            transcriber, window_request(melody(30.0, base=float(base)), language="en", timestamps=True, open_end=True)
        )
        expected = moved[-1] if moved[-1] >= 0.5 else 30.0
        assert window.advance_s == pytest.approx(expected)
    assert any(advance < 30.0 for advance in moved), "no window ended in the middle of a recording"


def test_what_a_window_says_after_its_last_time_is_kept_where_no_other_transcribes_it(
    transcriber: Transcriber, melody: Any
) -> None:
    for base in range(100, 900, 50):
        samples = melody(30.0, base=float(base))
        (open_end,) = transcribe_together(
            transcriber, window_request(samples, language="en", timestamps=True, open_end=True)
        )
        (closed,) = transcribe_together(transcriber, window_request(samples, language="en", timestamps=True))
        assert closed.advance_s == 30.0
        assert tokens_of(closed)[: len(tokens_of(open_end))] == tokens_of(open_end)
        if open_end.advance_s < 30.0 and len(tokens_of(closed)) > len(tokens_of(open_end)):
            rest = closed.segments[len(open_end.segments) :]
            assert rest[0].start >= open_end.advance_s
            assert rest[-1].end == 30.0
            return
    pytest.fail("no window had an unfinished rest")


def test_a_model_of_english_alone_is_not_told_a_language(
    transcription_model: ModelDirectory, tmp_path: Path, melody: Any
) -> None:
    directory = copied(transcription_model, tmp_path)
    path = directory / "generation_config.json"
    told = json.loads(path.read_text()) | {"is_multilingual": False}
    path.write_text(json.dumps({name: told[name] for name in told.keys() - {"lang_to_id", "task_to_id"}}))
    english = comparable(load_transcriber(directory, read_card(directory), device=CPU))
    assert TranscriptTokenizer(directory).languages == ["en"]
    (window,) = transcribe_together(english, window_request(melody(2.0), language="en"))
    expected = english.model.generate(features_of(english, melody(2.0)))[0].tolist()
    assert tokens_of(window) == [token for token in expected if token < english.end_token]
    (detected,) = transcribe_together(english, window_request(melody(2.0)))
    assert (detected.language, tokens_of(detected)) == ("en", tokens_of(window))


def test_times_do_not_leave_the_recording(transcriber: Transcriber, melody: Any) -> None:
    (window,) = transcribe_together(
        transcriber, window_request(melody(3.0), language="en", timestamps=True, words=True, open_end=True)
    )
    assert all(0 <= segment.start <= segment.end <= 3.0 for segment in window.segments)
    assert all(0 <= word.start <= word.end <= 3.0 for segment in window.segments for word in segment.words)
    assert 0 < window.advance_s <= 3.0


def copied(model: ModelDirectory, to: Path) -> Path:
    shutil.copytree(model.path, to, dirs_exist_ok=True)
    return to


def test_pickled_weights_are_refused(synthesis_model: ModelDirectory, tmp_path: Path) -> None:
    directory = copied(synthesis_model, tmp_path)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin.*convert them to safetensors"):
        load_synthesizer(directory, read_card(directory), device=CPU)


def test_a_checkpoint_without_some_weights_is_refused(transcription_model: ModelDirectory, tmp_path: Path) -> None:
    directory = copied(transcription_model, tmp_path)
    weights = load_file(directory / "model.safetensors")
    del weights["model.encoder.conv1.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"model\.encoder\.conv1\.weight"):
        load_transcriber(directory, read_card(directory), device=CPU)


def test_a_truncated_weight_file_is_refused(transcription_model: ModelDirectory, tmp_path: Path) -> None:
    directory = copied(transcription_model, tmp_path)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError):
        load_transcriber(directory, read_card(directory), device=CPU)


def test_another_architecture_is_refused_by_name(
    synthesis_model: ModelDirectory, transcription_model: ModelDirectory
) -> None:
    with pytest.raises(ModelLoadError, match="'whisper' model; speech synthesis knows vits"):
        load_synthesizer(transcription_model.path, transcription_model.card, device=CPU)
    with pytest.raises(ModelLoadError, match="'vits' model; transcription knows whisper"):
        load_transcriber(synthesis_model.path, synthesis_model.card, device=CPU)


def test_code_in_a_directory_is_not_run(synthesis_model: ModelDirectory, tmp_path: Path) -> None:
    directory = copied(synthesis_model, tmp_path / "model")
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (directory / "config.json").write_text(json.dumps(config))
    load_synthesizer(directory, read_card(directory), device=CPU)
    assert not (tmp_path / "ran").exists()


def test_a_directory_without_a_card_gets_voices_and_rates(
    synthesis_model: ModelDirectory, transcription_model: ModelDirectory, tmp_path: Path
) -> None:
    spoken, transcribed_model = copied(synthesis_model, tmp_path / "a"), copied(transcription_model, tmp_path / "b")
    for directory in (spoken, transcribed_model):
        (directory / "card.json").unlink()
    card = load_synthesizer(spoken, read_card(spoken), device=CPU).card
    assert (card.tasks, card.voices, card.sample_rate) == (["speech"], ["speaker-0", "speaker-1"], 16_000)
    card = load_transcriber(transcribed_model, read_card(transcribed_model), device=CPU).card
    assert (card.tasks, card.sample_rate) == (["transcription"], 16_000)


def test_random_models_are_the_same_on_every_machine(synthesis_model: ModelDirectory, tmp_path: Path) -> None:
    again = make_model("random_synthesis", tmp_path / "again")
    assert again.card.sha256 == synthesis_model.card.sha256
    assert "random weights" in (again.card.notice or "")
