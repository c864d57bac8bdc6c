"""A codec language model says what Transformers says: the same codes and sound, in windows, whatever runs beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
import torch
from transformers import CsmForConditionalGeneration

from tessera.errors import ContextLengthError, InvalidRequestError, ModelLoadError, OverloadedError
from tessera.hub.cards import read_card
from tessera.hub.store import ModelDirectory
from tessera.speech.codec.csm import CodecLanguageModel, load_codec_language_model
from tessera.speech.codec.queue import CodecSpeechQueue
from tessera.speech.codec.request import FIRST_FRAMES
from tessera.speech.engine import SpeechEngine
from tessera.tokenizer.spoken_turns import SpokenTurns, speaker_of
from tessera.wire.engine import Audio, Failed, FromEngine, Ready, Synthesize, Utterance

CPU = torch.device("cpu")
FRAMES = 15
SECONDS = FRAMES * 0.08
NEAR = 1e-4

Codes = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def reference(codec_model: ModelDirectory) -> Any:
    """Transformers' own model of the directory."""
    return CsmForConditionalGeneration.from_pretrained(codec_model.path, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def turns(codec_model: ModelDirectory) -> SpokenTurns:
    return SpokenTurns(codec_model.path)


def loaded(directory: Path, *, greedy: bool = True, kv_cache_bytes: int = 1 << 22) -> CodecLanguageModel:
    model = load_codec_language_model(
        directory, read_card(directory), device=CPU, kv_cache_bytes=kv_cache_bytes, max_streams=4
    )
    if greedy:
        model.first_sampling = msgspec.structs.replace(model.first_sampling, temperature=0.0)
        model.depth_sampling = msgspec.structs.replace(model.depth_sampling, temperature=0.0)
    return model


@pytest.fixture(scope="module")
def model(codec_model: ModelDirectory) -> CodecLanguageModel:
    return loaded(codec_model.path)


@pytest.fixture(scope="module")
def sampling_model(codec_model: ModelDirectory) -> CodecLanguageModel:
    return loaded(codec_model.path, greedy=False)


def queue_of(model: CodecLanguageModel, seconds: float = SECONDS) -> CodecSpeechQueue:
    return CodecSpeechQueue(model, max_waiting=8, max_seconds=seconds)


def spoken(name: str, *ids: list[int], **options: Any) -> Synthesize:
    return Synthesize(request_id=name, sentences=[Utterance(token_ids=one) for one in ids], **options)


class Said:
    """Everything that a queue answers, by request; and the codes of each, taken where they are made."""

    def __init__(self, queue: CodecSpeechQueue) -> None:
        self.queue = queue
        self.codes: dict[str, Codes] = {}
        self.audio: dict[str, list[Audio]] = {}
        self.failed: dict[str, Failed] = {}

    def ask(self, message: Synthesize) -> None:
        self.queue.submit(message)
        text = self.queue._texts[message.request_id]
        add_frame, codes = text.add_frame, self.codes.setdefault(message.request_id, [])

        def noted(frame: tuple[int, ...]) -> None:
            codes.append(frame)
            add_frame(frame)

        text.add_frame = noted  # type: ignore[method-assign]

    def step(self) -> list[FromEngine]:
        answers = self.queue.step()
        for answer in answers:
            if isinstance(answer, Failed):
                self.failed[answer.request_id] = answer
            else:
                assert isinstance(answer, Audio)
                self.audio.setdefault(answer.request_id, []).append(answer)
        return answers

    def all(self) -> Said:
        for _ in range(2000):
            if not len(self.queue):
                break
            self.step()
        assert not len(self.queue)
        assert not self.queue.scheduler.has_work()
        self.queue.scheduler.check_integrity()
        return self

    def wave(self, name: str) -> np.ndarray[Any, Any]:
        assert [answer.last for answer in self.audio[name]] == [False] * (len(self.audio[name]) - 1) + [True]
        return np.concatenate([np.frombuffer(answer.samples.data, "<f4") for answer in self.audio[name]])


@pytest.fixture
def said(model: CodecLanguageModel) -> Said:
    return Said(queue_of(model))


def transformers_says(reference: Any, ids: list[int], frames: int, **inputs: Any) -> tuple[Codes, np.ndarray[Any, Any]]:
    made = reference.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),  # else the places of frames count as padding
        do_sample=False,
        depth_decoder_do_sample=False,
        max_new_tokens=frames,
        output_audio=True,
        return_dict_in_generate=True,
        **inputs,
    )
    return [tuple(codes) for codes in made.sequences[0].tolist()], made.audio[0].numpy()


@torch.no_grad()
def transformers_goes_on(reference: Any, entries: list[Any], frames: int) -> Codes:
    """The next frames behind text tokens and frames, by Transformers' modules without any cache."""
    made: Codes = []
    for _ in range(frames):
        parts = [
            reference.embed_text_tokens(torch.tensor([[entry]]))
            if isinstance(entry, int)
            else reference.backbone_model.embed_tokens(torch.tensor([[entry]]))
            for entry in [*entries, *made]
        ]
        hidden = reference.backbone_model(inputs_embeds=torch.cat(parts, dim=1)).last_hidden_state[:, -1]
        first = reference.lm_head(hidden).argmax(-1)
        codes = reference.depth_decoder.generate(
            input_ids=torch.nn.functional.pad(first[:, None], (1, 0)),
            backbone_last_hidden_state=hidden.clone(),
            do_sample=False,
            min_new_tokens=reference.config.num_codebooks - 1,
            max_new_tokens=reference.config.num_codebooks - 1,
        )
        made.append(tuple(codes[0, 1:].tolist()))
    return made


# ---- the same as Transformers


@pytest.mark.slow
def test_codes_and_sound_are_those_of_transformers(said: Said, reference: Any, turns: SpokenTurns) -> None:
    ids = turns.encode("Hello from here.", 0)
    said.ask(spoken("a", ids))
    said.all()
    codes, wave = transformers_says(reference, ids, FRAMES)
    assert said.codes["a"] == codes
    assert np.abs(said.wave("a")).max() > 0.01
    assert said.wave("a").shape == wave.shape
    assert np.abs(said.wave("a") - wave).max() < NEAR
    assert said.audio["a"][0].frames == FIRST_FRAMES, "the first sound does not wait for the others"
    assert sum(answer.frames for answer in said.audio["a"]) == FRAMES


def test_texts_that_come_at_different_times_share_steps_and_say_what_each_says_alone(
    said: Said, reference: Any, turns: SpokenTurns
) -> None:
    texts = {"a": "One.", "b": "Another one, somewhat longer than the first.", "c": "Three!", "d": "And the last."}
    for number, (name, text) in enumerate(texts.items()):
        said.ask(spoken(name, turns.encode(text, number)))
        said.step()
        said.step()
    said.all()
    for number, (name, text) in enumerate(texts.items()):
        codes, wave = transformers_says(reference, turns.encode(text, number), FRAMES)
        assert said.codes[name] == codes, name
        assert np.abs(said.wave(name) - wave).max() < NEAR


def test_a_later_sentence_sees_the_earlier_ones(
    model: CodecLanguageModel, reference: Any, turns: SpokenTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(queue_of(model, seconds=60))
    monkeypatch.setattr("tessera.speech.codec.request.LEAST_S", 0.5)
    monkeypatch.setattr("tessera.speech.codec.request.TOKEN_S", 0.0)
    first, second = turns.encode("First.", 0), turns.encode("Second.", 0)
    said.ask(spoken("a", first, second))
    said.all()
    codes = said.codes["a"]
    assert len(codes) == 12
    assert codes[:6] == transformers_goes_on(reference, first, 6)
    before = [*first, *codes[:6], model.end_frame, *second]
    assert codes[6:] == transformers_goes_on(reference, before, 6)
    assert [answer.sentence for answer in said.audio["a"]] == sorted(answer.sentence for answer in said.audio["a"])
    decode = reference.codec_model.decode
    with torch.no_grad():
        waves = [decode(torch.tensor([part]).transpose(1, 2)).audio_values[0, 0] for part in (codes[:6], codes[6:])]
    assert np.abs(said.wave("a") - torch.cat(waves).numpy()).max() < NEAR


def test_a_conversation_longer_than_the_context_goes_on_behind_its_last_sentence(
    codec_model: ModelDirectory, reference: Any, turns: SpokenTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = loaded(codec_model.path, kv_cache_bytes=1).memory["kv_cache_bytes"]
    model = loaded(codec_model.path, kv_cache_bytes=8 * page)
    assert model.card.context_length == 128
    said = Said(queue_of(model, seconds=60))
    monkeypatch.setattr("tessera.speech.codec.request.LEAST_S", 1.6)
    monkeypatch.setattr("tessera.speech.codec.request.TOKEN_S", 0.0)
    monkeypatch.setattr("tessera.speech.codec.request.SPOKEN_TOKEN_S", 0.0)
    ids = turns.encode("A sentence of some thirty letters.", 0)
    said.ask(spoken("a", *[ids] * 4))
    said.all()
    codes = said.codes["a"]
    assert len(codes) == 4 * 20
    assert {answer.sentence for answer in said.audio["a"]} == {0, 1, 2, 3}
    before = [*ids, *codes[20:40], model.end_frame, *ids]
    assert codes[40:43] == transformers_goes_on(reference, before, 3), "the first sentence is forgotten"


def test_a_recorded_voice_stands_before_the_text_as_in_transformers(
    codec_model: ModelDirectory,
    reference: Any,
    turns: SpokenTurns,
    melody: Any,
    tmp_path: Path,
) -> None:
    directory = tmp_path / "with-voice"
    shutil.copytree(codec_model.path, directory)
    (directory / "voices").mkdir()
    samples = melody(1.2, rate=24_000)
    soundfile.write(directory / "voices" / "ada.wav", samples, 24_000, subtype="FLOAT")
    (directory / "voices" / "ada.txt").write_text("What Ada says.")
    model = loaded(directory)
    assert model.card.voices[:2] == ["ada", "speaker-0"]
    said = Said(queue_of(model, seconds=0.4))
    ids = turns.encode("Like her.", speaker_of("ada"))
    said.ask(spoken("a", ids, voices={0: 1.0}))
    said.ask(spoken("b", ids, voices={1: 1.0}))
    said.all()
    config = reference.config
    frames = int(reference.codec_model.get_encoded_length(torch.tensor(samples.size)))
    context = [*turns.encode("What Ada says.", 0), *[config.audio_token_id] * frames, config.audio_eos_token_id]
    codes, wave = transformers_says(
        reference,
        [*context, *ids],
        5,
        input_values=torch.from_numpy(samples)[None, None],
        input_values_cutoffs=torch.tensor([[samples.size]]),
    )
    assert said.codes["a"] == codes
    assert np.abs(said.wave("a") - wave).max() < NEAR
    assert said.codes["b"] == transformers_says(reference, ids, 5)[0]


@pytest.mark.parametrize("cuts", [[2, 4, 8, 8, 8], [1] * 30, [30], [3, 27]])
def test_windows_joined_are_the_whole(cuts: list[int], model: CodecLanguageModel, reference: Any) -> None:
    codes_2KF = torch.randint(64, (2, 8, 30), generator=torch.Generator().manual_seed(5))
    streams = [model.codec.begin(), model.codec.begin()]
    # The other one is ahead, so that states of different age share a pass.
    model.codec.decode(streams[1:], codes_2KF[1:, :, :7])
    parts, begin = [], 0
    for count in cuts:
        window = torch.stack([codes_2KF[0, :, begin : begin + count], codes_2KF[1, :, :count]])
        parts.append(model.codec.decode(streams, window)[0])
        begin += count
    with torch.no_grad():
        whole = reference.codec_model.decode(codes_2KF[:1]).audio_values[0, 0]
    assert (torch.cat(parts) - whole).abs().max() < 1e-5


# ---- drawn with a seed


def test_the_same_seed_makes_the_same_sound_whatever_shares_the_steps(
    sampling_model: CodecLanguageModel, turns: SpokenTurns
) -> None:
    ids = turns.encode("Something drawn.", 0)
    alone = Said(queue_of(sampling_model))
    alone.ask(spoken("a", ids, seed=7))
    alone.all()
    beside = Said(queue_of(sampling_model))
    for number in range(3):
        beside.ask(spoken(f"x{number}", turns.encode("Others, longer or not." * (number + 1), 1), seed=number))
    beside.step()
    beside.ask(spoken("a", ids, seed=7))
    beside.all()
    assert beside.codes["a"] == alone.codes["a"]
    assert np.abs(beside.wave("a") - alone.wave("a")).max() < 1e-5
    other = Said(queue_of(sampling_model))
    other.ask(spoken("a", ids, seed=8))
    other.all()
    assert other.codes["a"] != alone.codes["a"]


@pytest.mark.slow
def test_a_text_that_had_to_give_its_pages_back_says_the_same(
    codec_model: ModelDirectory,
    sampling_model: CodecLanguageModel,
    turns: SpokenTurns,
) -> None:
    ids = [turns.encode(f"Number {number} of several texts.", 0) for number in range(4)]
    plenty = Said(queue_of(sampling_model, seconds=3.0))
    small = loaded(codec_model.path, greedy=False, kv_cache_bytes=1)
    page = small.memory["kv_cache_bytes"]
    small = loaded(codec_model.path, greedy=False, kv_cache_bytes=page * 12)
    assert small.pages == 12
    scarce = Said(queue_of(small, seconds=3.0))
    for said in (plenty, scarce):
        for number, one in enumerate(ids):
            said.ask(spoken(str(number), one, seed=number))
        said.all()
    assert scarce.queue.scheduler.preemptions > 0
    assert scarce.codes == plenty.codes


@pytest.mark.slow
def test_a_crowd_of_texts_gives_way_to_another_keys_and_says_the_same(
    sampling_model: CodecLanguageModel, turns: SpokenTurns
) -> None:
    crowd = [turns.encode(f"Number {number} of many.", 0) for number in range(6)]
    new = turns.encode("Only one.", 0)
    said = Said(queue_of(sampling_model, seconds=2.0))
    for number, one in enumerate(crowd):
        said.ask(spoken(f"many-{number}", one, seed=number, tenant="many"))
    for _ in range(3):
        said.step()
    said.ask(spoken("new", new, seed=9, tenant="new"))
    said.step()
    assert len(said.codes["new"]) == 1, "its first frame comes with the next step"
    assert said.queue.scheduler.fair_preemptions == 1
    said.all()
    alone = Said(queue_of(sampling_model, seconds=2.0))
    for number, one in enumerate(crowd):
        alone.ask(spoken(f"many-{number}", one, seed=number))
    alone.ask(spoken("new", new, seed=9))
    alone.all()
    assert said.codes == alone.codes


# ---- ends


def ending(queue: CodecSpeechQueue, frame: tuple[int, ...], after: int) -> Callable[..., torch.Tensor]:
    """A pick that says `frame` as the frame number `after` of every text."""
    pick = queue._pick

    def ends(logits: torch.Tensor, chunks: Any, codebook: int) -> torch.Tensor:
        codes = pick(logits, chunks, codebook)
        for row, chunk in enumerate(chunks):
            if queue._texts[chunk.request.request_id].drawn == after:
                codes[row] = frame[codebook]
        return codes

    return ends


@pytest.mark.parametrize(("last", "frames"), [(0, 6), (5, 7)])
def test_the_frame_that_ends_a_text_is_heard_only_where_it_is_not_all_end(
    last: int, frames: int, said: Said, turns: SpokenTurns, model: CodecLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(said.queue, "_pick", ending(said.queue, (*model.end_frame[:-1], last), after=6))
    said.ask(spoken("a", turns.encode("It ends.", 0)))
    said.all()
    assert len(said.codes["a"]) == 7
    assert said.wave("a").size == frames * model.codec.hop


def test_an_end_at_once_is_silence_and_pauses_are_as_long_as_asked(
    said: Said, turns: SpokenTurns, model: CodecLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(said.queue, "_pick", ending(said.queue, model.end_frame, after=0))
    ids = turns.encode("Nothing.", 0)
    sentences = [Utterance(pause_s=0.5), Utterance(token_ids=ids, pause_s=0.25), Utterance(pause_s=0.125)]
    said.ask(Synthesize(request_id="a", sentences=sentences))
    said.all()
    assert said.wave("a").size == 24_000 * 0.875
    assert not said.wave("a").any()


def test_a_text_ends_at_the_longest_audio(model: CodecLanguageModel, turns: SpokenTurns) -> None:
    said = Said(queue_of(model, seconds=0.4))
    said.ask(spoken("a", *[turns.encode("A sentence.", 0)] * 3))
    said.all()
    assert said.wave("a").size == 5 * model.codec.hop


def test_a_cancelled_text_stops_at_the_next_frame(said: Said, turns: SpokenTurns) -> None:
    said.ask(spoken("a", turns.encode("Gone soon.", 0)))
    said.ask(spoken("b", turns.encode("It stays.", 0)))
    for _ in range(3):
        said.step()
    said.queue.cancel("a")
    said.queue.cancel("never seen")
    made = len(said.codes["a"])
    said.all()
    assert len(said.codes["a"]) == made == 3
    assert len(said.codes["b"]) == FRAMES


def test_the_speech_engine_counts_cancels_and_limits_its_texts(model: CodecLanguageModel, turns: SpokenTurns) -> None:
    nobody = SimpleNamespace(batch=lambda _: None)
    ready = Ready(device="cpu", cards=[model.card], directories=[], report={})
    engine = SpeechEngine(queue_of(model), nobody, max_waiting=2, ready=ready)  # type: ignore[arg-type]
    ids = turns.encode("One of them.", 0)
    engine.submit(spoken("a", ids))
    engine.submit(spoken("b", ids))
    with pytest.raises(OverloadedError):
        engine.submit(spoken("c", ids))
    while not any(isinstance(answer, Audio) and answer.request_id == "b" for answer in engine.step()):
        assert engine.has_work()
    assert engine.metrics()["requests_running"] == 2
    assert engine.metrics()["kv_pages_used"] >= 2
    engine.cancel("a")
    assert {answer.request_id for _ in range(FRAMES) for answer in engine.step()} == {"b"}
    assert not engine.has_work()
    assert engine.metrics()["requests_waiting"] == engine.metrics()["requests_running"] == 0
    assert engine.metrics()["kv_pages_used"] == 0
    assert engine.metrics()["synthesized_audio_seconds_total"] >= SECONDS


# ---- faults


def test_a_text_that_overflows_fails_alone(
    said: Said, turns: SpokenTurns, model: CodecLanguageModel, reference: Any
) -> None:
    weight = model.model.embed_text_tokens.weight
    ill = turns.encode("Z", 0)
    kept = weight[ill[-2]].clone()
    weight[ill[-2]] = torch.nan
    try:
        said.ask(spoken("ill", ill))
        well = turns.encode("And this one is well.", 0)
        said.ask(spoken("well", well))
        said.all()
    finally:
        weight[ill[-2]] = kept
    assert set(said.failed) == {"ill"}
    assert "finite" in said.failed["ill"].error.message
    assert said.codes["well"] == transformers_says(reference, well, FRAMES)[0]


def test_a_codec_that_fails_ends_its_own_text(
    said: Said, turns: SpokenTurns, model: CodecLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = model.codec.decode, iter(range(1000))

    def failing(streams: Any, codes: torch.Tensor) -> Any:
        if next(calls) == 2:
            raise RuntimeError("secret detail")
        return decode(streams, codes)

    monkeypatch.setattr(model.codec, "decode", failing)
    said.ask(spoken("a", turns.encode("One of two.", 0)))
    said.ask(spoken("b", turns.encode("Two of two.", 0)))
    said.all()
    assert set(said.failed) == {"a"}
    assert "secret" not in said.failed["a"].error.message
    assert said.wave("b").size == FRAMES * model.codec.hop


def test_a_step_that_fails_leaves_the_engine_whole(
    said: Said, turns: SpokenTurns, model: CodecLanguageModel, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = turns.encode("Once more.", 0)
    with monkeypatch.context() as broken:
        said.ask(spoken("a", ids))
        said.step()
        broken.setattr(model.depth, "frames", lambda *_: torch.zeros(0).view(3, 3))
        said.step()
    assert set(said.failed) == {"a"}
    said.ask(spoken("b", ids))
    said.all()
    assert said.codes["b"] == transformers_says(reference, ids, FRAMES)[0]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"sentences": []}, "input"),
        ({"sentences": [Utterance(token_ids=[260])]}, "input"),
        ({"sentences": [Utterance(token_ids=[-1])]}, "input"),
        ({"sentences": [Utterance(pause_s=61)]}, "input"),
        ({"voices": {0: 0.5, 1: 0.5}}, "voice"),
        ({"voices": {10: 1.0}}, "voice"),
        ({"speed": 1.5}, "speed"),
    ],
)
def test_what_makes_no_sense_is_refused_before_work(options: dict[str, Any], param: str, said: Said) -> None:
    fields: dict[str, Any] = {"request_id": "a", "sentences": [Utterance(token_ids=[256, 70, 257])], **options}
    with pytest.raises(InvalidRequestError) as caught:
        said.queue.submit(Synthesize(**fields))
    assert caught.value.param == param
    assert not len(said.queue)


def test_a_sentence_that_leaves_no_room_for_its_sound_is_refused(said: Said) -> None:
    with pytest.raises(ContextLengthError, match="512 positions"):
        said.ask(spoken("a", [70] * 120))
    assert not said.queue.scheduler.has_work()


# ---- loading


@pytest.fixture
def copied(codec_model: ModelDirectory, tmp_path: Path) -> Path:
    directory = tmp_path / "copied"
    shutil.copytree(codec_model.path, directory)
    return directory


def test_a_codec_that_looks_ahead_is_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["codec_config"]["use_causal_conv"] = False
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="use_causal_conv"):
        loaded(copied)


@pytest.mark.parametrize(
    ("rate", "seconds", "text"),
    [(16_000, 1.0, "words"), (24_000, 31.0, "words"), (24_000, 1.0, " "), (24_000, 1, None)],
)
def test_a_voice_that_cannot_be_taken_is_named(
    rate: int, seconds: float, text: str | None, copied: Path, melody: Any
) -> None:
    (copied / "voices").mkdir()
    soundfile.write(copied / "voices" / "ada.wav", melody(seconds, rate=rate), rate)
    if text is not None:
        (copied / "voices" / "ada.txt").write_text(text)
    with pytest.raises(ModelLoadError, match="ada"):
        loaded(copied)


def test_memory_beside_the_weights_is_told(model: CodecLanguageModel) -> None:
    position = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head size, bytes
    assert model.memory["kv_cache_bytes"] == model.pages * model.page_size * position
    assert model.pages == 4 * 512 // 16, "no more than all streams can fill"
    assert model.memory["codec_bytes"] == 4 * model.codec.stream_bytes
