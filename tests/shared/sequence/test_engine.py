"""The sequence engine against Transformers' own `generate`: the same greedy tokens, however the work is cut."""

from __future__ import annotations

import pytest
import torch
import transformers

from tessera.device.hardware import choose
from tessera.errors import ContextLengthError, InvalidRequestError, ModelLoadError, OverloadedError
from tessera.sequence.batch import StepOutput
from tessera.sequence.engine import SequenceEngine
from tessera.sequence.intake import media_cache_ids
from tessera.sequence.runner.build import build_runner
from tessera.sequence.runner.image_encoder import ImageFeatures
from tessera.sequence.speculation.policy import Speculation
from tessera.settings.sequence import SequenceEngineSettings
from tessera.wire.engine import Array, Embed, Embedded, Failed, Generate, GeneratedTokens, Ready, Sampling
from tessera.wire.models import Card

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
SHARED_EXPERT = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1}
CLASSES = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "phi3": {},
    "olmo2": {},
    "glm4": {},
    "gpt_oss": {**EXPERTS, "sliding_window": 8},
    "deepseek_v3": {**LATENT, "n_group": 2, "topk_group": 1},
}
MORE_CLASSES = {
    "deepseek_v2": {**LATENT, "n_group": 1, "topk_method": "greedy"},
    "cohere2": {"sliding_window": 8},
    "ernie4_5": {},
    "exaone4": {"sliding_window": 8},
    "glm4_moe": {**EXPERTS, **SHARED_EXPERT},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "granitemoe": EXPERTS,
    "hunyuan_v1_dense": {},
    "llama4_text": EXPERTS,
    "minimax_m2": EXPERTS,
    "olmo3": {"sliding_window": 8},
    "phi": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 32},
    "smollm3": {},
    "starcoder2": {},
}
PROMPTS = [[5, 9, 33, 7, 50], [11] * 3 + list(range(20, 60)), [60, 3]]
NEW_TOKENS = 12


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Directories of tiny random models, one for each class."""
    made = {}

    def make(name: str):
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            config = transformers.AutoConfig.for_model(name, **(SMALL | (CLASSES | MORE_CLASSES)[name]))
            torch.manual_seed(3)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
            model.save_pretrained(directory)
            made[name] = directory
        return made[name]

    return make


def engine_for(directory, **changes) -> SequenceEngine:
    settings = SequenceEngineSettings(**({"max_batch_tokens": 64, "page_size": 4} | changes))
    pages = settings.kv_cache_bytes
    runner = build_runner(
        directory,
        choose("cpu", threads=1),
        page_size=settings.page_size,
        kv_cache_bytes=pages,
        host_cache_bytes=settings.host_cache_bytes,
        fused=settings.fuse_projections,
        weights=settings.weights,
        kv_cache_dtype=settings.kv_cache_dtype,
    )
    return SequenceEngine(runner, settings, Ready(device="cpu", cards=[], directories=[], report={}))


def run(engine: SequenceEngine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work():
        for answer in engine.step():
            assert isinstance(answer, GeneratedTokens), answer
            tokens.setdefault(answer.request_id, []).extend(answer.token_ids)
    engine.scheduler.check_integrity()
    assert engine.scheduler.cache.available == engine.runner.pages
    assert engine.integrity_faults == 0
    return tokens


def generate(directory, prompt: list[int]) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLASSES, *MORE_CLASSES])
def test_greedy_tokens_equal_transformers(name, tiny_models):
    directory = tiny_models(name)
    engine = engine_for(directory, kv_cache_bytes=1 << 20)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
    got = run(engine)
    assert got == {str(index): generate(directory, prompt) for index, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mamba", {}, "only 0 of 2 layers attend .*MambaMixer"),
        ("qwen3_next", EXPERTS | {"num_hidden_layers": 4}, "only 1 of 4 layers attend .*Qwen3NextGatedDeltaNet"),
        ("nemotron", {}, "NemotronAttention do not pass keyword arguments"),
    ],
)
def test_layers_that_cannot_be_run_are_refused_by_name(name, changes, words, tmp_path):
    config = transformers.AutoConfig.for_model(name, **(SMALL | changes))
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=words):
        engine_for(tmp_path, kv_cache_bytes=1 << 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch_tokens": 1},
        {"max_batch_tokens": 3},
        {"max_batch_tokens": 512},
        {"page_size": 1},
        {"page_size": 64},
        {"max_running": 1},
        {"kv_cache_bytes": 64 * 512},
    ],
)
def test_budgets_pages_and_preemption_do_not_change_a_token(changes, tiny_models):
    directory = tiny_models("llama")
    engine = engine_for(directory, **({"kv_cache_bytes": 1 << 20} | changes))
    prompts = [*PROMPTS, PROMPTS[1][:20], PROMPTS[1][5:30]]
    for index, prompt in enumerate(prompts):
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
    got = run(engine)
    assert got == {str(index): generate(directory, prompt) for index, prompt in enumerate(prompts)}
    if "kv_cache_bytes" in changes:
        assert engine.scheduler.preemptions > 0


CONVERSATION = [*range(10, 30), 7, 8, 9]
TURNS = [
    CONVERSATION,
    CONVERSATION[:18],
    [*CONVERSATION, 40, 41, 42],
    [*CONVERSATION[:10], 50, 51],
    list(range(30, 62)),
    [*CONVERSATION, 40, 41, 43, 44],
    CONVERSATION,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_known_prefixes_change_no_token_whatever_was_evicted_or_came_from_the_host(name, tiny_models):
    directory = tiny_models(name)
    expected = [generate(directory, prompt) for prompt in TURNS]
    page = page_bytes(directory)
    for changes in ({}, {"kv_cache_bytes": 14 * page}, {"kv_cache_bytes": 14 * page, "host_cache_bytes": 40 * page}):
        engine = engine_for(directory, **({"kv_cache_bytes": 200 * page} | changes))
        for index, prompt in enumerate(TURNS):  # one after another
            message = Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS))
            engine.submit(message)
            assert run(engine) == {str(index): expected[index]}
        for index, prompt in enumerate(TURNS):  # and all at once
            message = Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS))
            engine.submit(message)
        assert run(engine) == {str(index): tokens for index, tokens in enumerate(expected)}
        cache = engine.scheduler.cache
        assert cache.hit_tokens["device"] > 0
        assert (cache.hit_tokens["host"] > 0) == ("host_cache_bytes" in changes)
        assert (cache.evicted_pages > 0) == bool(changes)


def page_bytes(directory) -> int:
    engine = engine_for(directory, kv_cache_bytes=1 << 16)
    return (1 << 16) // engine.runner.pages


def test_without_the_prefix_cache_the_tokens_are_the_same_and_nothing_is_kept(tiny_models):
    directory = tiny_models("llama")
    engine = engine_for(directory, kv_cache_bytes=1 << 20, prefix_cache="off")
    for index, prompt in enumerate(TURNS):
        message = Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS))
        engine.submit(message)
        assert run(engine) == {str(index): generate(directory, prompt)}
    assert engine.scheduler.allocator.used == 0
    assert engine.scheduler.cache.hit_tokens == {"device": 0, "host": 0}


def test_a_deadline_ends_a_request_with_an_error_and_leaves_the_others(tiny_models):
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=1 << 20)
    engine.submit(
        Generate(request_id="late", token_ids=PROMPTS[0], sampling=Sampling(max_tokens=NEW_TOKENS), deadline_s=0.0)
    )
    engine.submit(Generate(request_id="fine", token_ids=PROMPTS[0], sampling=Sampling(max_tokens=NEW_TOKENS)))
    first, *_ = engine.step()
    assert isinstance(first, Failed)
    assert (first.request_id, first.error.code) == ("late", "deadline_exceeded")
    assert set(run(engine)) == {"fine"}


def test_a_violated_invariant_empties_the_cache_and_the_engine_goes_on(tiny_models, caplog):
    directory = tiny_models("llama")
    engine = engine_for(directory, kv_cache_bytes=1 << 20)
    for attempt in range(2):
        message = Generate(request_id="r", token_ids=TURNS[0], sampling=Sampling(max_tokens=NEW_TOKENS))
        engine.submit(message)
        tokens = []
        while engine.has_work():
            if attempt == 0:
                engine.scheduler.cache.idle += 1
            tokens += [token for answer in engine.step() for token in answer.token_ids]
        assert tokens == generate(directory, TURNS[0])
    assert engine.integrity_faults == 1
    assert "is emptied" in caplog.text
    engine.scheduler.check_integrity()


def test_the_first_tokens_say_how_much_of_the_prompt_was_known(tiny_models):
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=1 << 20)
    said = []
    for name in ("first", "again"):
        engine.submit(Generate(request_id=name, token_ids=TURNS[0], sampling=Sampling(max_tokens=2)))
        said.append([answer.cached_tokens for _ in range(2) for answer in engine.step()])
    assert said == [[0, None], [len(TURNS[0]) - 1, None]]


def test_the_same_image_tokens_of_other_images_share_nothing():
    one, same, other = ({"pixel_values": Array(dtype="uint8", shape=[2], data=data)} for data in (b"ab", b"ab", b"ac"))
    assert media_cache_ids(one, [3, 4]) == media_cache_ids(same, [3, 4])
    assert set(media_cache_ids(one, [3, 4]).values()).isdisjoint(media_cache_ids(other, [3, 4]).values())
    assert all(value < 0 for value in media_cache_ids(one, [3, 4]).values())


FUSED = {
    "glm4": {"q_proj+k_proj+v_proj": 2},  # has gate and up in one
    "gpt_oss": {"q_proj+k_proj+v_proj": 2},  # experts are one tensor each
    "mixtral": {"q_proj+k_proj+v_proj": 2},
    "qwen3_moe": {"q_proj+k_proj+v_proj": 2},
    "phi3": {},
    "deepseek_v3": {"q_a_proj+kv_a_proj_with_mqa": 2, "gate_proj+up_proj": 2},
}
"""Groups of fused layers of the classes that do not fuse q, k, v and gate, up in both layers."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_what_is_fused_is_said_and_changes_no_token(name, tiny_models):
    directory = tiny_models(name)
    engine = engine_for(directory, kv_cache_bytes=1 << 18, fuse_projections=False)
    assert engine.runner.fusion.groups == {}
    for index, prompt in enumerate(PROMPTS):
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
    assert run(engine) == {str(index): generate(directory, prompt) for index, prompt in enumerate(PROMPTS)}
    fused = engine_for(directory, kv_cache_bytes=1 << 18).runner
    assert fused.fusion.groups == FUSED.get(name, {"q_proj+k_proj+v_proj": 2, "gate_proj+up_proj": 2})
    assert fused.model.num_parameters() == engine.runner.model.num_parameters()


REPEATING = [[5, 6, 7, 8, 9, 10] * 4, [60, 61, 60, 61, 60, 61], [33]]


@pytest.mark.parametrize("name", CLASSES)
def test_drafts_change_no_token(name, tiny_models):
    directory = tiny_models(name)
    engine = engine_for(directory, kv_cache_bytes=1 << 20, speculation="ngram")
    for index, prompt in enumerate(REPEATING):
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
    assert run(engine) == {str(index): generate(directory, prompt) for index, prompt in enumerate(REPEATING)}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"max_batch_tokens": 4}, {"page_size": 1}, {"kv_cache_bytes": 64 * 512}])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_with_drafts_every_seed_gives_the_same_text_in_fewer_steps(temperature, changes, tiny_models, monkeypatch):
    # Whether drafts pay is told by the time that steps take; here all take the same.
    record = Speculation.record_step_time
    monkeypatch.setattr(Speculation, "record_step_time", lambda self, rows, _: record(self, rows, 1.0))
    directory = tiny_models("llama")
    sampling = {"max_tokens": 40, "temperature": temperature, "repetition_penalty": 1.02, "logit_bias": {7: 4, 8: 4}}
    texts, steps, accepted = [], [], 0
    for speculation in ("off", "ngram"):
        engine = engine_for(directory, **({"kv_cache_bytes": 1 << 20, "speculation": speculation} | changes))
        for index, prompt in enumerate(REPEATING):
            own = Sampling(**sampling, seed=index, stop_ids=[3], logprobs=2)
            engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=own))
        texts.append(run(engine))
        steps.append(engine.steps)
        accepted = engine.metrics()["accepted_tokens_total"]
    assert texts[0] == texts[1]
    if temperature < 1 and changes.get("max_batch_tokens") != 4:
        assert accepted > 0
        assert steps[1] < steps[0]


def test_in_eight_bits_the_text_of_a_request_does_not_depend_on_what_shares_its_batch(tiny_models):
    directory = tiny_models("llama")
    sampling = Sampling(max_tokens=NEW_TOKENS, temperature=0.8, seed=5)
    alone = {}
    for index, prompt in enumerate(PROMPTS):
        engine = engine_for(directory, kv_cache_bytes=1 << 18, weights="int8")
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
        alone |= run(engine)
    together = engine_for(directory, kv_cache_bytes=1 << 18, weights="int8")
    for index, prompt in enumerate(PROMPTS):
        together.submit(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
    assert run(together) == alone


def test_embeddings_are_the_normalised_mean_of_the_last_hidden_states(tiny_models):
    directory = tiny_models("llama")
    engine = engine_for(directory, kv_cache_bytes=1 << 20, max_batch_tokens=7)
    engine.submit(Generate(request_id="beside", token_ids=PROMPTS[0], sampling=Sampling(max_tokens=3)))
    engine.submit(Embed(request_id="e", token_ids=PROMPTS[1]))
    vectors = []
    while engine.has_work():
        vectors += [answer for answer in engine.step() if isinstance(answer, Embedded)]
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    hidden = model(torch.tensor([PROMPTS[1]])).last_hidden_state[0]
    expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
    got = torch.frombuffer(bytearray(vectors[0].vector.data), dtype=torch.float32)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_cancelled_request_gives_its_pages_back_and_leaves_the_others_alone(tiny_models):
    directory = tiny_models("llama")
    engine = engine_for(directory, kv_cache_bytes=1 << 20)
    for name, prompt in (("stay", PROMPTS[0]), ("go", PROMPTS[1])):
        engine.submit(Generate(request_id=name, token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
    first = [answer for answer in engine.step() if answer.request_id == "stay"]
    engine.cancel("go")
    engine.cancel("never seen")
    rest = run(engine)
    assert [t for a in first for t in a.token_ids] + rest["stay"] == generate(directory, PROMPTS[0])
    assert "go" not in rest


def test_stop_tokens_end_a_request(tiny_models):
    directory = tiny_models("llama")
    expected = generate(directory, PROMPTS[0])
    engine = engine_for(directory, kv_cache_bytes=1 << 20)
    sampling = Sampling(max_tokens=NEW_TOKENS, stop_ids=[expected[4]])
    engine.submit(Generate(request_id="r", token_ids=PROMPTS[0], sampling=sampling))
    answers = []
    while engine.has_work():
        answers += list(engine.step())
    assert [t for a in answers for t in a.token_ids] == expected[: expected.index(expected[4]) + 1]
    assert answers[-1].finish_reason == "stop"


def test_a_step_that_fails_ends_its_requests_with_an_error_and_nothing_else(tiny_models, monkeypatch):
    directory = tiny_models("llama")
    engine = engine_for(directory, kv_cache_bytes=1 << 20)
    sampling = Sampling(max_tokens=2)
    engine.submit(Generate(request_id="unlucky", token_ids=PROMPTS[0], sampling=sampling))
    with monkeypatch.context() as patched:
        patched.setattr(engine.runner, "run", lambda _: (_ for _ in ()).throw(RuntimeError("out of memory")))
        (answer,) = engine.step()
    assert isinstance(answer, Failed)
    assert "out of memory" not in answer.error.message
    engine.submit(Generate(request_id="next", token_ids=PROMPTS[0], sampling=sampling))
    assert run(engine)["next"] == generate(directory, PROMPTS[0])[:2]


class StandInEncoder:
    """Counts the images that it encodes; an image of one byte raises the error of a wrong shape."""

    def __init__(self, model) -> None:
        self.model = model
        self.encoded = 0

    def encode(self, token_ids, media):
        if len(media["pixel_values"].data) == 1:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        self.encoded += 1
        return ImageFeatures(torch.zeros(0, self.model.config.hidden_size), {})

    def embed(self, ids_1T, chunks):
        return self.model.get_input_embeddings()(ids_1T)


def with_image(name: str, data: bytes = b"ab") -> Generate:
    media = {"pixel_values": Array(dtype="uint8", shape=[len(data)], data=data)}
    return Generate(request_id=name, token_ids=PROMPTS[0], sampling=Sampling(max_tokens=3), media=media)


def test_images_are_encoded_one_request_a_step_and_a_broken_one_ends_only_its_own_request(tiny_models):
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=1 << 20, max_waiting=3)
    engine.runner.encoder = StandInEncoder(engine.runner.model)
    engine.submit(Generate(request_id="beside", token_ids=PROMPTS[0], sampling=Sampling(max_tokens=6)))
    engine.submit(with_image("broken", b"a"))
    engine.submit(with_image("fine"))
    with pytest.raises(OverloadedError):
        engine.submit(with_image("one too many"))
    engine.cancel("one too many")
    assert engine.runner.encoder.encoded == 0
    first, second = list(engine.step()), list(engine.step())
    assert [type(answer) for answer in first] == [Failed, GeneratedTokens]
    assert {answer.request_id for answer in second} == {"beside", "fine"}
    engine.submit(with_image("left"))
    engine.cancel("left")
    assert set(run(engine)) == {"beside", "fine"}
    assert engine.runner.encoder.encoded == 1


def test_an_embedding_that_overflows_is_an_error_not_a_vector(tiny_models, monkeypatch):
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=1 << 20)
    engine.submit(Embed(request_id="e", token_ids=PROMPTS[0]))
    hidden = torch.full((len(PROMPTS[0]), 64), float("nan"))
    monkeypatch.setattr(engine.runner, "run", lambda _: StepOutput(torch.empty(0, 97), hidden))
    (answer,) = engine.step()
    assert isinstance(answer, Failed)
    assert not engine.has_work()


@pytest.mark.parametrize(
    ("tokens", "sampling", "error", "words"),
    [
        ([], {}, InvalidRequestError, "no tokens"),
        ([97], {}, InvalidRequestError, "token 97 is outside the model's vocabulary of 97"),
        ([-1], {}, InvalidRequestError, "token -1"),
        ([5], {"logit_bias": {5000: 1.0}}, InvalidRequestError, "token 5000"),
        ([5] * 510, {"max_tokens": 10}, ContextLengthError, "at most 512"),
    ],
)
def test_what_a_client_can_get_wrong_is_said(tokens, sampling, error, words, tiny_models):
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=1 << 20)
    with pytest.raises(error, match=words):
        engine.submit(Generate(request_id="r", token_ids=tokens, sampling=Sampling(**({"max_tokens": 1} | sampling))))
    assert not engine.has_work()


def test_the_card_says_how_much_of_one_request_this_engine_holds(tiny_models):
    card = Card(
        id="m", family="f", tasks=["chat"], source="s", parameters=1, licence="l", created=1, context_length=512
    )
    ready = Ready(device="cpu", cards=[card], directories=["/m"], report={})
    engine = engine_for(tiny_models("llama"), kv_cache_bytes=64 * 512)
    held = SequenceEngine(engine.runner, SequenceEngineSettings(), ready).ready().cards[0].context_length
    assert held == engine.runner.pages * engine.runner.page_size < 512


def test_pickled_weights_are_refused(tiny_models, tmp_path):
    source = tiny_models("llama")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="only pickled weights"):
        engine_for(tmp_path)


def test_a_truncated_weight_file_is_named(tiny_models, tmp_path):
    source = tiny_models("llama")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = (source / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        engine_for(tmp_path)


def test_a_recurrent_model_is_refused_with_the_reason(tmp_path):
    config = transformers.AutoConfig.for_model(
        "mamba", vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4, intermediate_size=64
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError):
        engine_for(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_a_quantized_cache_gives_one_text_however_the_work_is_cut_and_holds_more(name, kept, tiny_models):
    directory = tiny_models(name)
    texts = []
    for changes in ({}, {"max_batch_tokens": 3}, {"max_running": 1}, {"page_size": 16}):
        engine = engine_for(directory, **({"kv_cache_bytes": 1 << 18, "kv_cache_dtype": kept} | changes))
        for index, prompt in enumerate(TURNS[:4]):
            engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS)))
        texts.append(run(engine))
    assert texts[1:] == texts[:1] * 3
    exact = engine_for(directory, kv_cache_bytes=1 << 18)
    assert engine_for(directory, kv_cache_bytes=1 << 18, kv_cache_dtype=kept).runner.pages > 2 * exact.runner.pages


def test_a_quantized_cache_moves_to_the_host_and_back_with_its_scales(tiny_models):
    directory = tiny_models("llama")
    small = {"kv_cache_bytes": 14 * page_bytes(directory) // 3, "host_cache_bytes": 40 * page_bytes(directory)}
    texts = []
    for changes in ({"kv_cache_bytes": 1 << 20}, small):
        engine = engine_for(directory, kv_cache_dtype="int8", **changes)
        texts.append({})
        for index, prompt in enumerate(TURNS):  # one after another
            message = Generate(request_id=str(index), token_ids=prompt, sampling=Sampling(max_tokens=NEW_TOKENS))
            engine.submit(message)
            texts[-1] |= run(engine)
    assert texts[0] == texts[1]
    assert engine.metrics()["prefix_cache_hit_tokens_host_total"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fp8", "int4", "mxfp4", "nvfp4"])
def test_an_engine_runs_in_every_scheme_and_says_the_same_as_alone(scheme, tmp_path, caplog):
    caplog.set_level("INFO")
    config = transformers.AutoConfig.for_model("qwen3", **(SMALL | {"hidden_size": 128, "intermediate_size": 192}))
    torch.manual_seed(5)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    engine = engine_for(tmp_path, weights=scheme)
    assert f"in {scheme}: QuantizationReport(layers=" in caplog.text
    sampling = Sampling(max_tokens=NEW_TOKENS, temperature=0)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
    together, alone = run(engine), {}
    for index, prompt in enumerate(PROMPTS):
        single = engine_for(tmp_path, weights=scheme)
        single.submit(Generate(request_id=str(index), token_ids=prompt, sampling=sampling))
        alone |= run(single)
    assert together == alone
