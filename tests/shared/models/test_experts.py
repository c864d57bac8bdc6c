"""Experts through the kernel library equal Transformers' own; in few bits they are as near as the bits allow."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tessera.models.decoders import experts_stored_as, load_decoder
from tessera.models.experts import Experts, replace_experts
from tessera_kernels.grouped_gemm.reference import expert_of
from tessera_kernels.storage.quantized_weight import dequantize

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
LAYERS = {"qwen3_moe": 2, "mixtral": 2, "qwen2_moe": 2, "deepseek_v3": 1, "glm4_moe": 1, "gpt_oss": 2}
REACH = {"gpt_oss": 40}
"""What weights of experts are multiplied with: gates of gpt-oss are cut off at 7, so they must reach that."""


def model_of(name: str, **change: float) -> torch.nn.Module:
    torch.manual_seed(6)
    extra = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    extra |= {"num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(name, **(SMALL | (extra if name == "deepseek_v3" else {}) | change))
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in made.parameters():
        parameter.requires_grad_(False).mul_(REACH.get(name, 3) if parameter.ndim == 3 else 1)
    for place, parameter in made.named_parameters():
        if place.endswith("proj_bias"):
            parameter.normal_()
    return made


def experts_of(model: torch.nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@pytest.mark.parametrize("name", LAYERS)
def test_experts_equal_transformers(name):
    model = model_of(name)
    ids = torch.arange(40).view(2, 20)
    with torch.inference_mode():
        wanted = model(ids).logits
        report = replace_experts(model, "stored")
        got = model(ids).logits
    assert (report.layers, len(experts_of(model))) == (LAYERS[name], LAYERS[name])
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


@pytest.mark.parametrize("change", [{"swiglu_limit": 5.0}, {"swiglu_alpha": 1.0}])
def test_gates_of_another_kind_stay_with_transformers(change):
    model = model_of("gpt_oss", **change)
    assert replace_experts(model, "stored").layers == 0
    assert not experts_of(model)


def test_gates_of_gpt_oss_are_cut_off_in_this_test():
    """Else nothing would hold the clamped form."""
    model = model_of("gpt_oss")
    layer = model.model.layers[0].mlp.experts
    gates = torch.randn(9, 128, generator=torch.Generator().manual_seed(0)) @ layer.gate_up_proj[0]
    assert (gates.abs() > layer.limit).float().mean() > 0.1


@pytest.fixture
def stored_in_mxfp4(tmp_path):
    """A directory of a tiny gpt-oss as OpenAI publishes it: experts in blocks of 32 numbers of four bits.

    Returns:
        The directory, and for each layer's weights by name what they are in float32, [experts, outputs, inputs].
    """
    model = model_of("gpt_oss")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    tensors, exact = {}, {}
    for name, parameter in model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = parameter.contiguous()
            continue
        experts, inputs, outputs = parameter.shape
        numbers = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), dtype=torch.uint8)
        scales = torch.randint(120, 125, (experts, outputs, inputs // 32), dtype=torch.uint8)
        tensors[f"{name}_blocks"] = (numbers[..., ::2] | numbers[..., 1::2] << 4).contiguous()
        tensors[f"{name}_scales"] = scales
        exact[name] = (values[numbers.int()] * torch.exp2(scales.float() - 127)[..., None]).flatten(2)
    config = model.config.to_dict() | {
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    return tmp_path, exact


def test_gpt_oss_as_published_keeps_its_four_bits_to_the_last(stored_in_mxfp4):
    directory, exact = stored_in_mxfp4
    assert experts_stored_as(directory) == "mxfp4"
    model = load_decoder(directory, device=torch.device("cpu"), dtype=torch.float32)
    own = model.model.layers[0].mlp.experts
    random = torch.Generator().manual_seed(1)
    x = torch.randn(9, 128, generator=random)
    chosen = torch.stack([torch.randperm(6, generator=random)[:3] for _ in range(9)])
    shares = torch.rand(9, 3, generator=random)
    wanted = own(x, chosen, shares)
    report = replace_experts(model, "mxfp4")
    assert (report.layers, report.bytes_after < 0.15 * report.bytes_before) == (2, True)  # 4.25 of 32 bits, and filling
    torch.testing.assert_close(experts_of(model)[0](x, chosen, shares), wanted, rtol=1e-4, atol=1e-4)
    held = dequantize(expert_of(experts_of(model)[0].down, 2))
    assert torch.equal(held, exact["model.layers.0.mlp.experts.down_proj"][2])
