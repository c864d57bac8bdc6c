"""A layer of experts equals a plain loop over tokens and experts, in every scheme."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, poisoned, relative_rms

from tessera_kernels.grouped_gemm import grouped_gemm, tile_for
from tessera_kernels.grouped_gemm import reference as grouped_reference
from tessera_kernels.grouped_gemm import triton as grouped_launcher
from tessera_kernels.moe import combine, moe, reference
from tessera_kernels.moe import triton as launcher
from tessera_kernels.moe_routing import RoutingRule, plan, route
from tessera_kernels.quantizers import (
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
    quantize_nvfp4,
    quantize_scaled,
)
from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.quantized_weight import dequantize as dequantize_quantized
from tessera_kernels.storage.scaled_weight import ScaledWeight
from tessera_kernels.storage.scaled_weight import dequantize as dequantize_scaled

FP8 = torch.float8_e4m3fn
WAYS = {
    "dense": lambda w: QuantizedWeight("dense", w.shape[1], 64, w),
    "int4 32": lambda w: quantize_int4(w, 32),
    "int4 64 zero points": lambda w: quantize_int4(w, 64, symmetric=False),
    "int8": quantize_int8,
    "fp8": quantize_fp8,
    "mxfp4": quantize_mxfp4,
    "nvfp4": quantize_nvfp4,
    "scaled int8": lambda w: quantize_scaled(w, torch.int8),
    "scaled fp8": lambda w: quantize_scaled(w, FP8),
    "scaled fp8 blocks": lambda w: quantize_scaled(w, FP8, "block"),
}
SMALL = {"B_N": 32, "SPLITS": 1, "num_warps": 4, "num_stages": 2}


def stacked(way, weights):
    made = [WAYS[way](weight) for weight in weights]

    def together(name):
        parts = [getattr(one, name) for one in made]
        if parts[0] is None:
            return None
        raw = [part.view(torch.uint8) if part.dtype == FP8 else part for part in parts]
        return (torch.cat if name == "tensor_scale" else torch.stack)(raw).view(parts[0].dtype)

    if isinstance(made[0], ScaledWeight):
        return ScaledWeight(together("elements_NK"), together("scale"))
    names = ("elements", "scale_GN", "zero_GN", "tensor_scale")
    return replace(made[0], **{name: together(name) for name in names})


def meaning(weight):
    return dequantize_scaled(weight) if isinstance(weight, ScaledWeight) else dequantize_quantized(weight)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=4, deadline=None)
@given(
    tokens=st.integers(1, 9),
    chosen=st.integers(1, 2),
    experts=st.integers(2, 5),
    sizes=st.sampled_from([(24, 64), (40, 100), (130, 300)]),
    gated=st.sampled_from(["", "silu", "clamped"]),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    after=st.booleans(),
)
def test_grouped_products_equal_a_loop(way, tokens, chosen, experts, sizes, gated, bias, dtype, after):
    torch.manual_seed(tokens)
    outputs, inputs = sizes
    weights = torch.randn(experts, outputs, inputs)
    weight = stacked(way, weights.to(dtype) if way == "dense" else weights)
    rows = tokens if gated else tokens * chosen
    x = torch.randn(rows, inputs).to(dtype)
    added = torch.randn(experts, outputs).to(dtype) if bias else None
    choices = torch.randint(0, experts, (tokens, chosen), dtype=torch.int32)
    places = plan(choices, experts, 16)
    out = poisoned(tokens * chosen, outputs // 2 if gated else outputs, dtype=dtype)
    how = SMALL | ({"B_K": 128} if way.startswith("scaled") else {"AFTER": int(after)})
    got = grouped_launcher.grouped_gemm(
        x, weight, places, tokens * chosen, added, bool(gated), gated == "clamped", out=out, configuration=how
    )
    exact = grouped_reference.grouped_gemm(
        x.float(), replaced(weight), places, tokens * chosen, added, bool(gated), gated == "clamped"
    )
    assert relative_rms(got, exact) < BOUNDS[dtype] * (2 if way.startswith("scaled") else 1)
    if not way.startswith("scaled"):
        meant, step = meaning(weight).double(), rows // tokens
        loop = torch.stack([
            meant[expert] @ x[row // (1 if step == chosen else chosen)].double()
            + (added[expert].double() if bias else 0)
            for row, expert in enumerate(choices.flatten().tolist())
        ])  # fmt: skip
        if gated:
            gate, up = loop.chunk(2, dim=1)
            if gated == "clamped":
                gate, up = gate.clamp(max=7), up.clamp(-7, 7)
                loop = (up + 1) * gate * torch.sigmoid(gate * 1.702)
            else:
                loop = torch.nn.functional.silu(gate) * up
        assert relative_rms(got, loop) < BOUNDS[dtype]


def replaced(weight):
    """The reference takes inputs of any dtype, and dense weights with them."""
    if isinstance(weight, QuantizedWeight) and weight.format == "dense":
        return replace(weight, elements=weight.elements.float())
    return weight


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(0, 5),
    chosen=st.integers(1, 4),
    features=st.sampled_from([1, 100, 1500]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_combining_adds_in_order_and_skips_experts_elsewhere(tokens, chosen, features, dtype):
    torch.manual_seed(tokens)
    outer = torch.randn(tokens * chosen, features).to(dtype)
    experts = torch.randint(-1, 4, (tokens, chosen), dtype=torch.int32)
    outer[(experts < 0).flatten() | (experts >= 3).flatten()] = float("nan")
    weights = torch.rand(tokens, chosen)
    got = launcher.combine(outer, experts, weights, 3, out=poisoned(tokens, features, dtype=dtype))
    assert relative_rms(got, reference.combine(outer.float(), experts, weights, 3)) < BOUNDS[dtype]
    assert torch.equal(combine(outer, experts, weights, 3), reference.combine(outer, experts, weights, 3))


@pytest.mark.parametrize("way", ["dense", "int4 32", "scaled fp8 blocks"])
def test_a_layer_equals_a_plain_loop(way, monkeypatch):
    torch.manual_seed(3)
    x, logits = torch.randn(11, 64), torch.randn(11, 6)
    gate_up, down = stacked(way, torch.randn(6, 96, 64)), stacked(way, torch.randn(6, 64, 48))
    biases = {"gate_up_bias": torch.randn(6, 96), "down_bias": torch.randn(6, 64)}
    weights, experts = route(logits, RoutingRule(2))
    experts[4, 1] = -1
    exact = torch.zeros(11, 64, dtype=torch.float64)
    for token in range(11):
        for choice, expert in enumerate(experts[token].tolist()):
            if expert >= 0:
                inner = meaning(gate_up)[expert].double() @ x[token].double() + biases["gate_up_bias"][expert]
                inner = torch.nn.functional.silu(inner[:48]) * inner[48:]
                outer = meaning(down)[expert].double() @ inner + biases["down_bias"][expert]
                exact[token] += outer * weights[token, choice]
    bound = BOUNDS[FP8] if way.startswith("scaled") else BOUNDS[torch.float32]
    assert relative_rms(moe(x, gate_up, down, experts, weights, **biases), exact) < bound
    import tessera_kernels.grouped_gemm as grouped

    def by_kernel(*arguments):
        return grouped_launcher.grouped_gemm(*arguments)

    monkeypatch.setattr(grouped, "_run", by_kernel)
    got = moe(x, gate_up, down, experts, weights, **biases)
    assert relative_rms(got, exact) < bound
    assert torch.equal(got, moe(x, gate_up, down, experts, weights, **biases))


def test_values_that_are_not_finite_stay_in_their_token():
    x, weight = torch.randn(4, 64), stacked("int4 32", torch.randn(3, 32, 64))
    x[1, 5] = float("nan")
    choices = torch.tensor([[0], [0], [0], [2]], dtype=torch.int32)
    for clamped in (False, True):
        got = grouped_launcher.grouped_gemm(x, weight, plan(choices, 3, 16), 4, None, True, clamped)
        assert got.isfinite().all(1).tolist() == [True, False, True, True]


def test_tiles_follow_the_assignments_of_an_expert():
    dense, packed = stacked("dense", torch.randn(128, 2, 32)), stacked("int4 32", torch.randn(128, 2, 32))
    assert [tile_for(8 * tokens, dense) for tokens in (1, 64, 256, 512, 1024, 8192)] == [16, 16, 16, 32, 64, 128]
    assert tile_for(10**6, packed) == 64


def test_empty_inputs_give_empty_results():
    weight = stacked("int4 32", torch.randn(3, 32, 64))
    choices = torch.zeros(0, 2, dtype=torch.int32)
    assert grouped_gemm(torch.randn(0, 64), weight, plan(choices, 3, 16), 0).shape == (0, 32)
    assert moe(torch.randn(0, 64), stacked("dense", torch.randn(3, 32, 64)), stacked("dense", torch.randn(3, 64, 16)),
               choices, torch.zeros(0, 2)).shape == (0, 64)  # fmt: skip


def test_what_does_not_fit_is_refused():
    x, weight = torch.randn(4, 64), stacked("int4 32", torch.randn(3, 31, 64))
    choices = torch.zeros(4, 2, dtype=torch.int32)
    places, chances = plan(choices, 3, 16), torch.ones(4, 2)
    alone = WAYS["int4 32"](torch.randn(8, 64))
    for inputs, one, assignments, bias, gated, match in (
        (torch.randn(4, 63), weight, 8, None, False, "inputs must be float"),
        (x, alone, 8, None, False, "one dimension for experts"),
        (x, weight, 9, None, False, "no multiple"),
        (x, weight, 8, None, True, "gates and as many ups"),
        (x, weight, 8, torch.ones(3, 30), False, "the bias must be"),
        (x, stacked("dense", torch.randn(3, 32, 64).half()), 8, None, False, "must have the inputs'"),
    ):
        with pytest.raises(ValueError, match=match):
            grouped_gemm(inputs, one, places, assignments, bias, gated=gated)
    with pytest.raises(ValueError, match="rows must be"):
        combine(torch.randn(7, 64), choices, chances, 3)
    with pytest.raises(ValueError, match="weights must be"):
        combine(torch.randn(8, 64), choices, chances.half(), 3)
    with pytest.raises(ValueError, match="experts must be int32"):
        combine(torch.randn(8, 64), choices.long(), chances, 3)
    with pytest.raises(ValueError, match="down must be"):
        moe(x, stacked("dense", torch.randn(3, 32, 64)), stacked("dense", torch.randn(3, 64, 32)), choices, chances)


@pytest.mark.parametrize("way", ["int4 32", "scaled int8"])
def test_the_registered_ops_pass_opcheck(way):
    torch.manual_seed(0)
    gate_up, down = stacked(way, torch.randn(3, 32, 64)), stacked(way, torch.randn(3, 64, 16))
    x, (weights, experts) = torch.randn(5, 64), route(torch.randn(5, 3), RoutingRule(2))
    places = plan(experts, 3, 16)
    torch.library.opcheck(torch.ops.tessera.moe_combine, (torch.randn(10, 8), experts, weights, 3))
    if isinstance(gate_up, ScaledWeight):
        parts = gate_up.elements_NK, gate_up.scale, None, None, None, places.rows_P, places.experts_B, "scaled", 0, 0
    else:
        parts = (gate_up.elements, gate_up.scale_GN, None, None, None, places.rows_P, places.experts_B, "int4", 64, 32)
    torch.library.opcheck(torch.ops.tessera.grouped_gemm, (x, *parts, 16, 10, True, False))
    compiled = torch.compile(lambda x: moe(x, gate_up, down, experts, weights), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), moe(x, gate_up, down, experts, weights))


def test_experts_beyond_two_to_the_31_elements():
    experts, outputs, inputs = 1040, 256, 8192
    elements = torch.empty(experts, outputs, inputs, dtype=torch.int8)  # only pages that are touched take memory
    scale = torch.empty(experts, 1, outputs)
    elements[-1], scale[-1] = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8), 0.01
    assert elements[-1].storage_offset() > 2**31
    weight = QuantizedWeight("int8", inputs, inputs, elements, scale)
    weight.check()
    x = torch.randn(2, inputs)
    places = plan(torch.zeros(2, 1, dtype=torch.int32), 1, 16)
    places = replace(places, experts_B=torch.full_like(places.experts_B, experts - 1))
    got = grouped_launcher.grouped_gemm(
        x, weight, places, 2, None, False, configuration=SMALL | {"AFTER": 0, "B_N": 256}
    )
    assert relative_rms(got, x.double() @ (elements[-1].double() * 0.01).t()) < BOUNDS[torch.float32]


def test_a_tuned_configuration_is_launched(monkeypatch):
    from tessera_kernels import tuning
    from tessera_kernels.scaled_linear import triton as scaled_launcher
    from tessera_kernels.weight_only_linear import triton as weight_only_launcher

    asked, tuned, cpu = [], {"B_N": 64}, torch.device("cpu")
    monkeypatch.setattr(tuning, "lookup", lambda *names: asked.append(names) or tuned)
    packed, scaled = WAYS["int4 32"](torch.randn(70, 200)), WAYS["scaled fp8 blocks"](torch.randn(70, 200))
    places = plan(torch.zeros(3, 1, dtype=torch.int32), 3, 16)
    found = (
        weight_only_launcher.config(5, packed, torch.bfloat16, cpu, invariant=False),
        weight_only_launcher.config(5, packed, torch.bfloat16, cpu, invariant=True),
        scaled_launcher.config(300, scaled, cpu, invariant=False),
        grouped_launcher.config(stacked("mxfp4", torch.randn(3, 70, 200)), places, torch.float16, cpu, gated=True),
        grouped_launcher.config(
            stacked("scaled int8", torch.randn(3, 70, 200)), places, torch.float16, cpu, gated=False
        ),
    )
    assert all(one == tuned for one in found)
    assert asked == [
        ("weight_only_linear", "cpu", "int4 bfloat16", "T8 N128 K256"),
        ("weight_only_linear", "cpu", "int4 bfloat16", "invariant N128 K256"),
        ("scaled_linear", "cpu", "float8_e4m3fn blocks", "Tmany N128 K256"),
        ("grouped_gemm", "cpu", "mxfp4 float16", "T16 N128 K256 gated"),
        ("grouped_gemm", "cpu", "scaled int8", "T16 N128 K256"),
    ]
