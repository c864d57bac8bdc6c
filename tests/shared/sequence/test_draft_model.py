"""Speculation with a draft model: the same texts in fewer steps, whatever the draft model is, has or does."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from tessera.device.hardware import choose
from tessera.errors import ModelLoadError
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.runner.build import build_runner
from tessera.sequence.runner.sequence_runner import SequenceRunner
from tessera.sequence.speculation.draft_model import DraftModel
from tessera.sequence.start import start_sequence_engine
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Cancel, Generate, GeneratedTokens, Ready, Sampling

VOCABULARY = 97
PROMPTS = [[5, 9, 33, 7, 50], [11] * 3 + list(range(20, 60)), [60, 3], list(range(70, 90))]


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    """Make tiny random Llamas by seed, number of layers and context length."""
    made = {}

    def make(seed: int, layers: int = 2, context: int = 512):
        if (seed, layers, context) not in made:
            directory = tmp_path_factory.mktemp("llama")
            config = transformers.LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=context,
                initializer_range=0.3,
            )
            torch.manual_seed(seed)
            transformers.LlamaForCausalLM(config).save_pretrained(directory)
            vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
            Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(directory / "tokenizer.json"))
            made[seed, layers, context] = directory
        return made[seed, layers, context]

    return make


def runner_of(directory, pages_of_bytes: int = 1 << 20) -> SequenceRunner:
    return build_runner(directory, choose("cpu", threads=1), page_size=4, kv_cache_bytes=pages_of_bytes)


def engine_of(directory, draft: SequenceRunner | None, **changes) -> SequenceEngine:
    settings = SequenceEngineSettings(**({"max_batch_tokens": 64, "page_size": 4} | changes))
    drafter = draft and DraftModel(draft, max_tokens=settings.max_batch_tokens, vocabulary=VOCABULARY)
    return SequenceEngine(
        runner_of(directory), settings, Ready(device="cpu", cards=[], directories=[], report={}), drafter=drafter
    )


def texts(engine: SequenceEngine, temperature: float, **more) -> dict[str, list[int]]:
    for index, prompt in enumerate(PROMPTS):
        sampling = Sampling(**({"max_tokens": 30, "temperature": temperature, "seed": index, "logprobs": 1} | more))
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
    found: dict[str, list[int]] = {}
    while engine.has_work():
        for answer in engine.step():
            assert isinstance(answer, GeneratedTokens), answer
            found.setdefault(answer.request_id, []).extend(answer.token_ids)
    engine.scheduler.check_integrity()
    return found


def drafted(engine: SequenceEngine) -> DraftModel:
    assert engine.speculation is not None
    assert isinstance(engine.speculation.drafter, DraftModel)
    return engine.speculation.drafter


def always_pays(engine: SequenceEngine, monkeypatch) -> None:
    """Draft in every step: whether it pays is measured, and on tiny models it never does."""
    monkeypatch.setattr(engine.speculation, "_pays", lambda *_: True)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_that_is_the_target_is_nearly_always_right_at_any_temperature(directory_of, temperature, monkeypatch):
    plain = engine_of(directory_of(1), None)
    engine = engine_of(directory_of(1), runner_of(directory_of(1)))
    always_pays(engine, monkeypatch)
    more = {"top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    assert texts(engine, temperature, **more) == texts(plain, temperature, **more)
    metrics = engine.metrics()
    assert metrics["accepted_tokens_total"] > 0.97 * metrics["draft_tokens_total"] > 50
    assert engine.steps < 0.4 * plain.steps
    assert drafted(engine).allocator.used == 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("draft", "changes"),
    [
        ((2, 1, 512), {}),
        ((2, 1, 512), {"max_batch_tokens": 5, "max_running": 2}),
        ((2, 1, 24), {}),
        ((1, 2, 40), {"kv_cache_bytes": 64 * 512}),
    ],
)
def test_any_draft_changes_no_token(directory_of, draft, changes, temperature, monkeypatch):
    plain = engine_of(directory_of(1), None)
    engine = engine_of(directory_of(1), runner_of(directory_of(*draft)), **changes)
    always_pays(engine, monkeypatch)
    assert texts(engine, temperature) == texts(plain, temperature)
    assert engine.metrics()["draft_tokens_total"] > 0
    assert drafted(engine).allocator.used == 0


def test_requests_that_find_no_pages_for_their_draft_go_on_without(directory_of, monkeypatch):
    engine = engine_of(directory_of(1), runner_of(directory_of(1), pages_of_bytes=12 * 4 * 512))
    always_pays(engine, monkeypatch)
    assert drafted(engine).runner.pages == 12
    assert texts(engine, 0.0) == texts(engine_of(directory_of(1), None), 0.0)
    assert engine.metrics()["draft_tokens_total"] > 0
    assert drafted(engine).allocator.used == 0


def test_a_cancelled_request_gives_its_draft_pages_back(directory_of, monkeypatch):
    engine = engine_of(directory_of(1), runner_of(directory_of(1)))
    always_pays(engine, monkeypatch)
    engine.submit(Generate(request_id="a", token_ids=PROMPTS[1], sampling=Sampling(max_tokens=200)))
    for _ in range(3):
        list(engine.step())
    assert drafted(engine).allocator.used > 0
    engine.cancel(Cancel(request_id="a").request_id)
    assert drafted(engine).allocator.used == 0


def test_a_draft_that_fails_is_given_up_and_nobody_notices(directory_of, monkeypatch, caplog):
    engine = engine_of(directory_of(1), runner_of(directory_of(1)))
    always_pays(engine, monkeypatch)
    runner, calls = drafted(engine).runner, []

    def fail(batch):
        calls.append(batch)
        if len(calls) == 5:
            raise RuntimeError("out of memory")
        return SequenceRunner.run(runner, batch)

    monkeypatch.setattr(runner, "run", fail)
    assert texts(engine, 0.7) == texts(engine_of(directory_of(1), None), 0.7)
    assert len(calls) == 5
    assert "from here on nothing is drafted" in caplog.text
    assert drafted(engine).allocator.used == 0


@pytest.mark.slow
def test_the_setting_starts_it_and_refuses_what_cannot_draft(directory_of, tmp_path):
    target = directory_of(1)

    def start(**changes) -> SequenceEngine:
        settings = SequenceEngineSettings(device="cpu", threads=1, speculation="draft", page_size=4, **changes)
        return start_sequence_engine(str(target), settings, tmp_path, 0.0)

    engine = start(draft_model=str(directory_of(2, 1)))
    assert texts(engine, 0.0) == texts(engine_of(target, None), 0.0)
    with pytest.raises(ModelLoadError, match="no `draft_model` is named"):
        start()
    other = tmp_path / "other"
    shutil.copytree(directory_of(2, 1), other)
    Tokenizer(models.WordLevel({"x": 0, "y": 1}, unk_token="x")).save(str(other / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="other tokens"):
        start(draft_model=str(other))
