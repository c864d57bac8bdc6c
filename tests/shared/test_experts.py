"""Experts through the kernel library equal Transformers' own; in few bits they are as near as the bits allow."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from tessera.models.experts import Experts, replace_experts

SMALL = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
PLAIN = {"qwen3_moe": 2, "mixtral": 2, "qwen2_moe": 2, "deepseek_v3": 1, "glm4_moe": 1}


def model_of(name: str) -> torch.nn.Module:
    torch.manual_seed(6)
    extra = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    extra |= {"num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(name, **(SMALL | (extra if name == "deepseek_v3" else {})))
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in made.parameters():
        parameter.requires_grad_(False).mul_(3 if parameter.ndim == 3 else 1)
    return made


def experts_of(model: torch.nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@pytest.mark.parametrize("name", PLAIN)
def test_experts_equal_transformers(name):
    model = model_of(name)
    ids = torch.arange(40).view(2, 20)
    with torch.inference_mode():
        wanted = model(ids).logits
        report = replace_experts(model, "stored")
        got = model(ids).logits
    assert (report.layers, len(experts_of(model))) == (PLAIN[name], PLAIN[name])
    assert report.bytes_after == report.bytes_before
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


# Three products, each with its scheme's own error (tests/kernels/test_quantizers.py): about 1.7 times that together.
@pytest.mark.parametrize(
    ("scheme", "bound"), [("int8", 0.025), ("fp8", 0.075), ("int4", 0.2), ("mxfp4", 0.25), ("nvfp4", 0.2)]
)
def test_in_few_bits_they_are_near(scheme, bound):
    exact = model_of("qwen3_moe")
    few = copy.deepcopy(exact)
    replace_experts(exact, "stored")
    report = replace_experts(few, scheme)
    assert report.bytes_after < report.bytes_before * (0.3 if scheme in {"int8", "fp8"} else 0.17)
    torch.manual_seed(1)
    x = torch.randn(9, 128)
    chosen, shares = torch.stack([torch.randperm(6)[:3] for _ in range(9)]), torch.rand(9, 3)
    for one, other in zip(experts_of(exact), experts_of(few), strict=True):
        wanted, got = one(x, chosen, shares), other(x, chosen, shares)
        assert (got - wanted).norm() / wanted.norm() < bound


def test_gates_of_another_kind_stay_with_transformers():
    model = model_of("gpt_oss")
    assert replace_experts(model, "stored").layers == 0
    assert not experts_of(model)
