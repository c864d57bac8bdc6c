"""The models as Transformers has them: same samples, same tokens. What is not such a model is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import VitsModel, VitsTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from tessera.errors import InvalidRequestError, ModelLoadError, SettingsError
from tessera.hub.cards import read_card
from tessera.hub.store import ModelDirectory
from tessera.models.speech_random import RandomStream
from tessera.models.speech_synthesis import Synthesizer, load_synthesizer
from tessera.models.speech_transcription import Transcriber, load_transcriber
from tessera.settings import load
from tessera_speech import worker
from tessera_speech.transcripts import Transcripts

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
    return load_transcriber(transcription_model.path, transcription_model.card, device=CPU)


def their_samples(directory: Path, seed: int, voice: int, rate: float) -> list[torch.Tensor]:
    model, tokenizer = VitsModel.from_pretrained(directory).eval(), VitsTokenizer.from_pretrained(directory)
    torch.manual_seed(seed)
    with torch.no_grad():
        return [
            model(**tokenizer(text, return_tensors="pt"), speaker_id=voice, speaking_rate=rate).waveform[0]
            for text in TEXTS
        ]


@pytest.mark.parametrize(("seed", "voice", "speed"), [(0, 0, 1.0), (7, 1, 1.0), (2**40, 0, 0.5), (3, 1, 4.0)])
def test_samples_are_those_of_transformers_with_the_same_seed(
    seed: int, voice: int, speed: float, synthesizer: Synthesizer, synthesis_model: ModelDirectory
) -> None:
    expected = their_samples(synthesis_model.path, seed, voice, speed)
    tokenizer, random = VitsTokenizer.from_pretrained(synthesis_model.path), RandomStream(seed, CPU)
    for text, theirs in zip(TEXTS, expected, strict=True):
        ours = synthesizer.speak(tokenizer(text).input_ids, voice=voice, speed=speed, random=random)
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
            made.append(synthesizer.speak(sentence, voice=0, speed=1.0, random=mine))
            if disturbed:
                torch.manual_seed(99)
                synthesizer.speak(sentence, voice=1, speed=2.0, random=other)
                torch.randn(1000)
        return made

    for alone, beside in zip(spoken(disturbed=False), spoken(disturbed=True), strict=True):
        assert torch.equal(alone, beside)


def test_a_unit_leaves_the_processs_own_random_numbers_alone(synthesizer: Synthesizer) -> None:
    torch.manual_seed(1)
    expected = torch.randn(4)
    torch.manual_seed(1)
    synthesizer.speak([0, 5, 0], voice=0, speed=1.0, random=RandomStream(0, CPU))
    assert torch.equal(torch.randn(4), expected)


@pytest.mark.parametrize("speed", [0.25, 0.5, 2.0, 4.0])
def test_speed_shortens_what_is_said(speed: float, synthesizer: Synthesizer) -> None:
    tokens = [index % 40 for index in range(101)]
    normal = synthesizer.speak(tokens, voice=0, speed=1.0, random=RandomStream(0, CPU)).numel()
    changed = synthesizer.speak(tokens, voice=0, speed=speed, random=RandomStream(0, CPU)).numel()
    assert changed == pytest.approx(normal / speed, rel=0.2)


@pytest.mark.parametrize(("tokens", "voice"), [([], 0), ([10_000], 0), ([-1], 0), ([1], 2), ([1], -1)])
def test_tokens_and_voices_that_the_model_lacks_are_refused(
    tokens: list[int], voice: int, synthesizer: Synthesizer
) -> None:
    with pytest.raises(InvalidRequestError):
        synthesizer.speak(tokens, voice=voice, speed=1.0, random=RandomStream(0, CPU))


OPTIONS: dict[str, Any] = {"prompt_ids": [], "temperature": 0.0}


@pytest.mark.parametrize("seconds", [1.0, 12.3, 30.0])
@pytest.mark.parametrize("language", ["en", "de", None])
def test_greedy_tokens_are_those_of_transformers(
    seconds: float, language: str | None, transcriber: Transcriber, transcription_model: ModelDirectory, melody: Any
) -> None:
    directory = transcription_model.path
    model = WhisperForConditionalGeneration.from_pretrained(directory).eval()
    features = WhisperFeatureExtractor.from_pretrained(directory)(
        melody(seconds), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    expected = model.generate(features, language=language, task="transcribe")[0].tolist()
    ours = transcriber.features(melody(seconds))
    assert torch.equal(ours, features)
    heard = transcriber.transcribe(
        ours,
        seconds=seconds,
        language=language or transcriber.detect_language(ours),
        timestamps=False,
        random=RandomStream(0, CPU),
        **OPTIONS,
    )
    assert len(expected) > 10
    assert heard.segments[0].token_ids == [token for token in expected if token < model.config.eos_token_id]
    assert (heard.segments[0].start, heard.segments[0].end, heard.advance_s) == (0.0, seconds, seconds)


def test_a_prompt_reaches_the_model(transcriber: Transcriber, melody: Any) -> None:
    features = transcriber.features(melody(5.0))
    before = transcriber.model.generation_config.prev_sot_token_id
    prompt = [before, 70, 71, 72]
    expected = transcriber.model.generate(features, language="en", task="transcribe", prompt_ids=torch.tensor(prompt))
    heard = transcriber.transcribe(
        features,
        seconds=5.0,
        language="en",
        prompt_ids=prompt,
        temperature=0.0,
        timestamps=False,
        random=RandomStream(0, CPU),
    )
    text = [token for token in expected[0].tolist() if token < transcriber.model.config.eos_token_id]
    assert heard.segments[0].token_ids == text
    unprompted = transcriber.transcribe(
        features, seconds=5.0, language="en", timestamps=False, random=RandomStream(0, CPU), **OPTIONS
    )
    assert unprompted.segments[0].token_ids != text


def test_a_temperature_draws_from_the_requests_own_numbers(transcriber: Transcriber, melody: Any) -> None:
    features = transcriber.features(melody(5.0))

    def heard(temperature: float, seed: int) -> list[int]:
        window = transcriber.transcribe(
            features,
            seconds=5.0,
            language="en",
            prompt_ids=[],
            temperature=temperature,
            timestamps=False,
            random=RandomStream(seed, CPU),
        )
        return window.segments[0].token_ids

    assert heard(1.0, 1) == heard(1.0, 1)
    assert heard(1.0, 1) != heard(1.0, 2)
    assert heard(0.0, 1) == heard(0.0, 2)


@pytest.mark.parametrize("base", [180.0, 300.0, 440.0])
def test_segments_of_a_window_are_those_of_transformers(base: float, transcriber: Transcriber, melody: Any) -> None:
    features = transcriber.features(melody(30.0, base=base))
    theirs = transcriber.model.generate(
        features,
        language="en",
        task="transcribe",
        return_timestamps=True,
        return_segments=True,
        force_unique_generate_call=True,
    )["segments"][0]
    window = transcriber.transcribe(
        features, seconds=30.0, language="en", timestamps=True, random=RandomStream(0, CPU), **OPTIONS
    )
    assert [(segment.start, segment.end) for segment in window.segments] == [
        (float(segment["start"]), float(segment["end"])) for segment in theirs
    ]
    assert any(segment.token_ids for segment in window.segments)


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
        window = transcriber.transcribe(
            transcriber.features(melody(30.0, base=float(base))),
            seconds=30.0,
            language="en",
            timestamps=True,
            random=RandomStream(0, CPU),
            **OPTIONS,
        )
        assert window.advance_s == pytest.approx(moved[-1])
    assert any(advance < 30.0 for advance in moved), "no window ended in the middle of a recording"


def test_a_model_of_english_alone_is_not_told_a_language(
    transcription_model: ModelDirectory, tmp_path: Path, melody: Any
) -> None:
    directory = copied(transcription_model, tmp_path)
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "is_multilingual": False}))
    english = load_transcriber(directory, read_card(directory), device=CPU)
    features = english.features(melody(2.0))
    assert english.detect_language(features) == "en"
    assert Transcripts(directory).languages == ["en"]
    heard = english.transcribe(
        features, seconds=2.0, language="en", timestamps=False, random=RandomStream(0, CPU), **OPTIONS
    )
    expected = english.model.generate(features)[0].tolist()
    assert heard.segments[0].token_ids == [token for token in expected if token < english.model.config.eos_token_id]


def test_times_do_not_leave_the_recording(transcriber: Transcriber, melody: Any) -> None:
    window = transcriber.transcribe(
        transcriber.features(melody(3.0)),
        seconds=3.0,
        language="en",
        timestamps=True,
        random=RandomStream(0, CPU),
        **OPTIONS,
    )
    assert all(0 <= segment.start <= segment.end <= 3.0 for segment in window.segments)
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
    spoken, heard = copied(synthesis_model, tmp_path / "a"), copied(transcription_model, tmp_path / "b")
    for directory in (spoken, heard):
        (directory / "card.json").unlink()
    card = load_synthesizer(spoken, read_card(spoken), device=CPU).card
    assert (card.tasks, card.voices, card.sample_rate) == (["speech"], ["speaker-0", "speaker-1"], 16_000)
    card = load_transcriber(heard, read_card(heard), device=CPU).card
    assert (card.tasks, card.sample_rate) == (["transcription"], 16_000)


def test_recordings_that_no_message_can_carry_are_refused_at_the_start(
    synthesis_model: ModelDirectory, transcription_model: ModelDirectory, models_dir: Path
) -> None:
    values = {"suite": {"models": str(models_dir)}, "speech": {"max_audio_seconds": 20_000, "threads": 1}}
    with pytest.raises(SettingsError, match="at most 16760 fit"):
        worker.build(load(environment={}, overrides=values))


def test_random_models_are_the_same_on_every_machine(
    synthesis_model: ModelDirectory, made: Callable[[str, Path], ModelDirectory], tmp_path: Path
) -> None:
    again = made("random_synthesis", tmp_path / "again")
    assert again.card.sha256 == synthesis_model.card.sha256
    assert "random weights" in (again.card.notice or "")
