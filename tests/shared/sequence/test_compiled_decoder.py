"""A compiled decoder step computes what the model's own layers do; each row the same bits whatever shares its step."""

from __future__ import annotations

import pytest
import torch
import transformers

from tessera.device.hardware import choose
from tessera.models.quantized import Int8Linear
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.runner import build
from tessera.sequence.runner.build import build_runner
from tessera.sequence.runner.compiled import decoder as compiled_decoder
from tessera.sequence.runner.compiled.rotary_order import half_order
from tessera.sequence.runner.sequence_runner import SequenceRunner
from tessera.wire.engine import Sampling
from tessera_kernels.cpu import instructions
from tessera_kernels.int8_decoder import step

pytestmark = pytest.mark.skipif(not instructions.available(), reason="the processor has no AVX-512 VNNI")

PAGE = 16
SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FIT = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 8},
    "qwen2": {"intermediate_size": 384},  # whole groups of inputs behind the gate; the others have a part of one
    "qwen3": {},
    "ernie4_5": {"hidden_act": "gelu_pytorch_tanh"},
}
DIFFERENT = {
    "gemma2": "a layer of",
    "qwen3_moe": "gate_proj and up_proj are not one product",
    "gpt_oss": "sinks",
    "olmo2": "a layer of",
    "phi3": "a layer of",
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SAME_LEVELS = 0.75
"""Least share of rows in which both computations quantize every value to the same level; 0.88 and more were seen."""
ONE_LEVEL = 5e-3
"""Most that the logits of a row differ, relative to their norm, when a few values are a level apart; 2e-3 was seen."""
SEQUENCES = (3, 40, 17, 1)
"""Tokens; one has more than are attended to row by row."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    def make(name: str, **changes):
        made = tmp_path_factory.getbasetemp() / "-".join(["decoder", name, *map(str, changes.values())])
        if not made.exists():
            extra = FIT.get(name, {})
            if name in {"qwen3_moe", "gpt_oss"}:
                extra = EXPERTS
            config = transformers.AutoConfig.for_model(name, **(SMALL | extra | changes))
            torch.manual_seed(4)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.data += 0.3 * torch.randn_like(parameter)  # norms and biases that matter
            model.save_pretrained(made)
        return made

    return make


def runner(directory, **changes) -> SequenceRunner:
    settings = {"page_size": PAGE, "kv_cache_bytes": 1 << 22, "weights": "int8"} | changes
    return build_runner(directory, choose("cpu", threads=1), **settings)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 500, (count,), generator=generator).tolist() for count in SEQUENCES]


def requests() -> list[SequenceRequest]:
    made = []
    for index, tokens in enumerate(prompts()):
        scored = Sampling(max_tokens=8, prompt_logprobs=0)
        made.append(SequenceRequest(f"r{index}", tokens, scored, pages=list(range(20 * index, 20 * index + 20))))
    return made


def logits(made: SequenceRunner, chunks: list[Chunk]) -> tuple[torch.Tensor, torch.Tensor | None]:
    output = made.run(Batch(chunks))
    return output.logits_RV, output.prompt_logits_SV


def whole(some: list[SequenceRequest]) -> list[Chunk]:
    return [Chunk(request, 0, len(request.token_ids)) for request in some]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIT)
def test_any_number_of_threads_computes_the_same_bits(name, directory, monkeypatch):
    made, found = runner(directory(name, intermediate_size=384)), []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(logits(made, whole(requests())))
        one_each = [Chunk(request, len(request.token_ids) - 1, 1) for request in requests()]
        found[-1] += logits(made, one_each)[:1]
    for one in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(one, found[0], strict=True))


def test_there_may_be_more_threads_than_blocks_of_a_vocabulary(directory, monkeypatch):
    made, found = runner(directory("llama", vocab_size=128)), []
    some = [SequenceRequest("r", [3, 100, 7], Sampling(max_tokens=1), pages=[0])]
    for threads in (1, 9):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: 1 + threads)  # one is spared
        output = made.run(Batch(whole(some)))
        found.append(output.logits_RV)
        assert output.top_logit.tokens_R.tolist() == output.logits_RV.argmax(dim=1).tolist()
    assert torch.equal(*found)


@pytest.mark.parametrize("lengths", [(170, 130), (1,) * 260], ids=["prompts", "single tokens"])
def test_many_rows_are_the_same_bits_whether_threads_share_rows_or_weights(lengths, directory, monkeypatch):
    made, found = runner(directory("llama", intermediate_size=384)), []
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randint(3, 500, (count,), generator=generator).tolist() for count in lengths]
    most = -(-max(lengths) // PAGE)
    some = [
        SequenceRequest(
            f"r{index}", tokens, Sampling(max_tokens=1), pages=list(range(most * index, most * (index + 1)))
        )
        for index, tokens in enumerate(drawn)
    ]
    # Two threads have rows enough for each of them, of three each takes a part of the weights.
    assert 2 * step.ROW_PARALLEL_MIN_ROWS <= sum(lengths) < 3 * step.ROW_PARALLEL_MIN_ROWS
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(logits(made, whole(some))[0])
    assert all(torch.equal(one, found[0]) for one in found[1:])


@pytest.mark.parametrize("threads", [1, 3])
def test_it_says_who_is_likeliest(threads, directory, monkeypatch):
    made = runner(directory("llama"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    output = made.run(Batch(whole(requests())))
    assert output.top_logit is not None
    assert torch.equal(output.top_logit.tokens_R, output.logits_RV.argmax(dim=-1))
    assert torch.equal(output.top_logit.logits_R, output.logits_RV.amax(dim=-1))


@pytest.mark.parametrize("scaling", ["default", "dynamic"])
def test_positions_are_rotated_as_transformers_does_it(scaling, directory, tmp_path):
    config = transformers.AutoConfig.from_pretrained(directory("llama"))
    config.rope_parameters = {"rope_type": scaling, "rope_theta": 1e4, "factor": 2.0}
    model = transformers.AutoModelForCausalLM.from_config(config)
    made = compiled_decoder.CompiledDecoder(model, decoder=None)
    for positions in ([0, 5, 200], [3], [300, 7], [9000], [4]):
        at_1T = torch.tensor([positions])
        expected = model.model.rotary_emb(torch.zeros(1, 1, 8), at_1T)
        for got, wanted in zip(made._rotations(at_1T), expected, strict=True):
            assert torch.equal(got, wanted[0])


# In the first case both quantize the same values, and only sums are in another order. Where that moves a value across
# the border between two levels, its row and the rows that attend to it differ by a level; in how many rows that
# happens depends on the processor. In the other cases it happens in every row, to keys more often than to inputs.
# With `auto` the keys of the model's own layers are not quantized.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv_cache_dtype", "group", "bound"),
    [("computed", None, 1e-5), ("computed", 128, 0.02), ("auto", 128, 0.025), ("int8", 128, 0.03)],
)
@pytest.mark.parametrize("name", FIT)
def test_it_computes_what_the_models_own_layers_do(name, kv_cache_dtype, group, bound, directory, monkeypatch):
    monkeypatch.setattr(compiled_decoder, "DOWN_GROUP", group)
    compiled = runner(directory(name), kv_cache_dtype=kv_cache_dtype)
    assert compiled.forward.is_compiled
    stored = {"computed": torch.float32, "auto": torch.float16, "int8": torch.int8}
    assert compiled.storage.caches[0].key_PSHD.dtype == stored[kv_cache_dtype]
    with monkeypatch.context() as patch:
        patch.setattr(build, "compile_decoder", lambda *_: (None, "off"))
        own = runner(directory(name), kv_cache_dtype=kv_cache_dtype)
    assert own.storage.caches[0].key_PSHD.dtype == (torch.int8 if kv_cache_dtype == "int8" else torch.float32)
    for chunks in (whole(requests()), [Chunk(request, len(request.token_ids) - 1, 1) for request in requests()]):
        (got, scored), (wanted, scores) = logits(compiled, chunks), logits(own, chunks)
        pairs = [(got, wanted)] + ([(scored, scores)] if scores is not None and len(scores) else [])
        for ours, theirs in pairs:
            if group is None:
                differences_R = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
                assert differences_R.quantile(SAME_LEVELS) < bound
                assert differences_R.max() < ONE_LEVEL
            else:
                assert compiled_decoder._relative_difference(ours, theirs) < bound


@pytest.mark.parametrize(
    ("kv_cache_dtype", "stored"), [("auto", torch.float16), ("int8", torch.int8), ("computed", torch.bfloat16)]
)
def test_a_model_that_computes_in_bfloat16_loads_and_is_near(kv_cache_dtype, stored, directory):
    exact, made = (
        build_runner(
            directory("qwen3"),
            choose("cpu", threads=1, dtype=dtype),
            page_size=PAGE,
            kv_cache_bytes=1 << 22,
            weights="int8",
            kv_cache_dtype=kv_cache_dtype,
        )
        for dtype in ("float32", "bfloat16")
    )
    assert made.storage.caches[0].key_PSHD.dtype == stored
    assert made.forward.is_compiled == (stored != torch.bfloat16)
    got, wanted = (logits(one, whole(requests()))[0].float() for one in (made, exact))
    assert compiled_decoder._relative_difference(got, wanted) < 0.05


@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_a_row_is_the_same_bits_whatever_shares_its_step_and_however_many_threads(name, directory, monkeypatch):
    made = runner(directory(name))
    some = requests()
    for chunk in whole(some):
        logits(made, [chunk])
    decodes = [Chunk(request, len(request.token_ids) - 1, 1) for request in some]
    alone = torch.cat([logits(made, [chunk])[0] for chunk in decodes])
    assert torch.equal(logits(made, decodes)[0], alone)
    assert torch.equal(logits(made, decodes[::-1])[0], alone.flip(0))
    beside = SequenceRequest("long", list(range(3, 63)), Sampling(max_tokens=1), pages=list(range(100, 120)))
    assert torch.equal(logits(made, [*decodes, Chunk(beside, 0, 60)])[0][:-1], alone)
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(logits(made, decodes)[0], alone)


def test_hidden_states_are_those_behind_the_last_norm(directory, monkeypatch):
    compiled = runner(directory("llama"))
    with monkeypatch.context() as patch:
        patch.setattr(build, "compile_decoder", lambda *_: (None, "off"))
        own = runner(directory("llama"))
    request = SequenceRequest("embedded", prompts()[2], None, pages=list(range(10)))
    got, wanted = (made.run(Batch(whole([request]))).hidden_TD for made in (compiled, own))
    assert compiled_decoder._relative_difference(got, wanted) < 0.02


@pytest.mark.parametrize(("name", "words"), DIFFERENT.items())
def test_a_model_that_does_not_fit_runs_through_its_own_layers_and_says_why(name, words, directory, caplog):
    caplog.set_level("INFO")
    made = runner(directory(name))
    assert not made.forward.is_compiled
    assert words in caplog.text
    assert torch.isfinite(logits(made, whole(requests()))[0]).all()


@pytest.mark.parametrize(
    ("tried", "words"), [(True, "layer 0 makes queries and keys in another way"), (False, "logits differ by")]
)
def test_layers_that_only_look_alike_are_detected_by_the_trial(tried, words, directory, monkeypatch, caplog):
    caplog.set_level("INFO")
    scaled = compiled_decoder._weight_of
    monkeypatch.setattr(compiled_decoder, "_weight_of", lambda norm: scaled(norm) * 1.3)
    if not tried:  # What is compiled is tried once more, all of it.
        monkeypatch.setattr(compiled_decoder, "try_layers", lambda *_: half_order(SMALL["head_dim"]))
    made = runner(directory("llama"))
    assert not made.forward.is_compiled
    assert words in caplog.text
    assert torch.isfinite(logits(made, whole(requests()))[0]).all()


@pytest.mark.parametrize(
    ("changes", "compiled"), [({}, True), ({"kv_cache_dtype": "fp8"}, False), ({"page_size": 8}, False)]
)
def test_auto_quantizes_weights_only_where_steps_are_compiled(changes, compiled, directory, monkeypatch):
    monkeypatch.setattr(build, "AUTO_INT8_MIN_WEIGHTS", 0)
    made = runner(directory("llama"), **({"weights": "auto"} | changes))
    assert made.forward.is_compiled == compiled
    assert any(isinstance(module, Int8Linear) for module in made.model.modules()) == compiled


def test_the_models_own_weights_are_freed(directory):
    made = runner(directory("llama"))
    kept = [module for module in made.model.get_decoder().layers.modules() if hasattr(module, "smoothing_K")]
    assert not kept
    assert not any(
        hasattr(module, "weight") for module in made.model.modules() if type(module).__name__ == "Int8Linear"
    )


def test_an_overflow_stays_in_its_row(directory):
    made = runner(directory("llama"))
    with torch.no_grad():
        made.model.get_input_embeddings().weight[7] = float("nan")
    good = [SequenceRequest("good", [5, 9, 11], Sampling(max_tokens=1), pages=[0])]
    bad = [SequenceRequest("bad", [5, 7, 11], Sampling(max_tokens=1), pages=[1])]
    alone = logits(made, whole(good))[0]
    together = logits(made, whole(good + bad))[0]
    assert torch.equal(together[:1], alone)
    assert not torch.isfinite(together[1]).any()
