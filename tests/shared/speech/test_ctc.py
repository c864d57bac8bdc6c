"""A Parakeet directory has the transcripts of Transformers, is cut where nothing is said, and says when words were."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.shared.speech.engine_requests import window_request
from tests.shared.speech.random_parakeet import make_encoder_config, make_tokenizer
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetProcessor,
    ParakeetTokenizer,
)

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.cards import read_card
from tessera.speech.transcription.loading import load_transcriber
from tessera.speech.transcription.parakeet_ctc import WINDOW_S, CTCTranscriber, WordFrames, cut_at_pause
from tessera.speech.transcription.queue import TranscriptionQueue
from tessera.speech.transcription.transcriber import WindowRequest, WindowTranscript
from tessera.wire.engine import Array, Transcribe, Transcript, TranscriptSegment
from tessera_speech.recordings.decoding import decode
from tessera_speech.starter.transcription.recipe import WEIGHTS
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, melody: Any) -> Path:
    """A small Parakeet with random weights, saved by Transformers as the big ones are."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("parakeet")
    tokenizer = make_tokenizer("<pad>")
    blank = tokenizer.token_to_id("<pad>")
    torch.manual_seed(3)
    config = ParakeetCTCConfig(vocab_size=blank + 1, pad_token_id=blank, encoder_config=make_encoder_config(0.5))
    model = ParakeetForCTC(config).eval()
    sound = ParakeetFeatureExtractor()(melody(20.0), sampling_rate=16_000, return_tensors="pt").input_features
    with torch.no_grad():
        # Every token is made as likely as every other, so that they follow the sound; then pauses and words likelier.
        logits = model(input_features=sound).logits[0]
        model.ctc_head.weight /= logits.std(0)[:, None, None]
        model.ctc_head.bias.copy_((model.ctc_head.bias - logits.mean(0)) / logits.std(0))
        model.ctc_head.bias[blank] += 1.5
        model.ctc_head.bias[tokenizer.token_to_id("▁a") : blank] += 0.5
    model.save_pretrained(path)
    wrapped = ParakeetTokenizer(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    wrapped.save_pretrained(path)
    ParakeetFeatureExtractor().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def transcriber(directory: Path) -> CTCTranscriber:
    made = load_transcriber(directory, read_card(directory), device=CPU)
    assert isinstance(made, CTCTranscriber)
    return made


def request(samples: np.ndarray[Any, Any], **changes: Any) -> WindowRequest:
    options: dict[str, Any] = {"language": "en", "timestamps": True, "open_end": True} | changes
    return window_request(samples, **options)


def window(transcriber: CTCTranscriber, samples: np.ndarray[Any, Any], **changes: Any) -> WindowTranscript:
    return transcriber.transcribe([request(samples, **changes)])[0]


def transcribed(transcriber: CTCTranscriber, samples: np.ndarray[Any, Any]) -> list[TranscriptSegment]:
    """The whole of a recording, through the engine's windows."""
    queue = TranscriptionQueue(transcriber, max_windows=4)
    audio = Array(dtype="float32", shape=[samples.size], data=samples.tobytes())
    queue.submit(Transcribe(request_id="a", audio=audio, timestamps=True))
    segments: list[TranscriptSegment] = []
    while len(queue):
        before = queue.transcribed_s
        for answer in queue.step():
            assert isinstance(answer, Transcript)
            segments += answer.segments
        assert queue.transcribed_s > before
    return segments


@pytest.mark.parametrize("seconds", [0.2, 1.0, 3.37, 12.3, 23.9])
def test_the_text_is_that_of_transformers(
    seconds: float, directory: Path, transcriber: CTCTranscriber, melody: Any
) -> None:
    samples = melody(seconds)
    tokenizer = ParakeetTokenizer.from_pretrained(directory)
    processor = ParakeetProcessor(ParakeetFeatureExtractor.from_pretrained(directory), tokenizer)
    model = ParakeetForCTC.from_pretrained(directory).eval()
    inputs = processor(samples, sampling_rate=16_000)
    expected = processor.batch_decode(model.generate(**inputs), skip_special_tokens=True)[0]
    assert len(expected) >= 4 * (seconds > 1)
    found = window(transcriber, samples, timestamps=False)
    assert [(segment.start, segment.end) for segment in found.segments] == [(0.0, seconds)]
    assert found.advance_s == seconds
    assert TranscriptTokenizer(directory).text(found.segments[0].token_ids).strip() == expected.strip()


def test_segments_and_words_are_the_same_tokens_in_time(
    directory: Path, transcriber: CTCTranscriber, melody: Any
) -> None:
    samples = melody(20.0)
    plain = window(transcriber, samples, timestamps=False).segments[0].token_ids
    segments = window(transcriber, samples).segments
    assert [token for segment in segments for token in segment.token_ids] == plain
    transcripts = TranscriptTokenizer(directory)
    words = [word for segment in segments for word in segment.words]
    assert [token for word in words for token in word.token_ids] == plain
    assert " ".join(transcripts.text(word.token_ids).strip() for word in words) == transcripts.text(plain).strip()
    assert "".join(transcripts.text(segment.token_ids) for segment in segments) == transcripts.text(plain)
    for earlier, later in pairwise(words):
        assert earlier.start < earlier.end <= later.start
    for segment in segments:
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        assert segment.end - segment.start < 12
    assert words[-1].end <= 20.0


def test_a_long_recording_is_heard_to_its_end_in_order(transcriber: CTCTranscriber, melody: Any) -> None:
    seconds = 3.3 * WINDOW_S
    segments = transcribed(transcriber, melody(seconds))
    words = [word for segment in segments for word in segment.words]
    assert words[-1].end > seconds - 2
    assert all(earlier.end <= later.start + 0.09 for earlier, later in pairwise(words))


def spoken(*frames: tuple[int, int]) -> list[WordFrames]:
    return [WordFrames([1], first, end) for first, end in frames]


@pytest.mark.parametrize(
    ("words", "quiet", "kept", "cut"),
    [
        (spoken((0, 5), (50, 70), (75, 80), (95, 99)), 88, 3, 88),  # the longest pause of the last third
        (spoken((0, 5), (69, 75), (95, 99)), 30, 2, 75),  # a quiet place elsewhere does not count
        (spoken((0, 65), (65, 80), (80, 100)), 0, 2, 80),  # no pause: in front of a word
        (spoken(), 77, 0, 77),  # no words: the quietest place
        (spoken((0, 100)), 0, 1, 100),  # one endless word: all of it
    ],
)
def test_a_window_is_cut_where_nothing_is_said(words: list[WordFrames], quiet: int, kept: int, cut: int) -> None:
    loudness = [1.0] * 100
    loudness[quiet] = 0.0
    assert cut_at_pause(words, loudness) == (kept, cut)


@pytest.mark.parametrize("frames", range(3, 60))
def test_a_cut_always_moves_on_and_keeps_what_is_before_it(frames: int) -> None:
    random = np.random.default_rng(frames)
    for _ in range(20):
        places = np.unique(random.integers(0, frames + 1, size=random.integers(0, 12)))
        words = spoken(*((int(a), int(b)) for a, b in pairwise(places) if random.random() < 0.7))
        kept, cut = cut_at_pause(words, random.random(frames).tolist())
        assert 0 < cut <= frames
        assert all(word.end <= cut for word in words[:kept])
        assert all(word.first >= cut for word in words[kept:])


@pytest.fixture(scope="module")
def starter() -> CTCTranscriber:
    made = load_transcriber(WEIGHTS, read_card(WEIGHTS), device=CPU)
    assert isinstance(made, CTCTranscriber)
    return made


def test_windows_of_any_length_in_one_pass_have_the_transcripts_they_have_alone(starter: CTCTranscriber) -> None:
    speech = decode(
        files("moonshine_voice").joinpath("assets", "beckett.wav").read_bytes(), rate=16_000, max_seconds=60
    )
    pieces = [request(speech[: int(seconds * 16_000)]) for seconds in (9.9, 1.0, 3.37, 0.2, 7.3)]
    for one, together in zip(pieces, starter.transcribe(pieces), strict=True):
        alone = starter.transcribe([one])[0]
        assert [(s.token_ids, s.start, s.end, s.words) for s in together.segments] == [
            (s.token_ids, s.start, s.end, s.words) for s in alone.segments
        ]
        for mine, theirs in zip(together.segments, alone.segments, strict=True):
            assert mine.avg_logprob == pytest.approx(theirs.avg_logprob, abs=1e-3)
            assert mine.compression_ratio == theirs.compression_ratio
    assert sum(len(one.segments) for one in starter.transcribe(pieces)) >= 4


def test_a_pass_takes_the_longest_waiting_and_those_of_like_length(transcriber: CTCTranscriber, melody: Any) -> None:
    batch = transcriber.batch(5)
    for number, seconds in enumerate((2.0, 8.0, 2.5, 2.9, 9.0)):
        batch.add(number, request(melody(seconds)))
    assert batch.room == 0
    batch.drop(3)
    assert [sorted(batch.step()) for _ in range(3)] == [[0, 2], [1, 4], []]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"language": "de"}, "language"),
        ({"prompt_ids": (3,)}, "prompt"),
        ({"temperature": 0.5}, "temperature"),
        ({"translate": True}, "model"),
    ],
)
def test_what_a_ctc_model_cannot_do_is_refused(
    changes: dict[str, Any], param: str, transcriber: CTCTranscriber, melody: Any
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        transcriber.check(request(melody(1.0), **changes))
    assert caught.value.param == param


def test_prompts_and_languages_are_refused_before_the_engine_is_asked(directory: Path) -> None:
    transcripts = TranscriptTokenizer(directory)
    assert transcripts.languages == ["en"]
    assert not transcripts.translates
    assert transcripts.language("EN") == "en"
    assert transcripts.prompt_ids(None) == []
    with pytest.raises(InvalidRequestError, match="does not know the language 'fr'"):
        transcripts.language("fr")
    with pytest.raises(InvalidRequestError, match="takes no prompt"):
        transcripts.prompt_ids("Tessera")


def test_silence_has_times_and_no_fault(transcriber: CTCTranscriber) -> None:
    found = window(transcriber, np.zeros(16_000, dtype=np.float32))
    assert found.advance_s == 1.0
    assert all(np.isfinite([segment.start, segment.end]).all() for segment in found.segments)


def test_a_checkpoint_without_some_weights_is_refused(directory: Path, tmp_path: Path) -> None:
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["ctc_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"ctc_head\.weight"):
        load_transcriber(tmp_path, read_card(tmp_path), device=CPU)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "tokenizer.json"])
def test_a_directory_that_lacks_a_file_is_refused(name: str, directory: Path, tmp_path: Path) -> None:
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).unlink()
    with pytest.raises(ModelLoadError, match="feature settings or tokenizer"):
        load_transcriber(tmp_path, read_card(tmp_path), device=CPU)


def test_the_directory_is_laid_out_as_nvidias(directory: Path) -> None:
    names = {path.name for path in directory.iterdir()}
    assert {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"} <= names
    assert json.loads((directory / "config.json").read_text())["model_type"] == "parakeet_ctc"
