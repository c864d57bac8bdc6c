"""Benchmark cases of `grouped_gemm`: both products of Qwen3's experts, for a decode step and for prefill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import QWEN3_30B_A3B
from tessera_kernels.grouped_gemm import reference, tile_for
from tessera_kernels.grouped_gemm.cost import ProductSizes, cost
from tessera_kernels.grouped_gemm.experts_weight import ExpertsWeight
from tessera_kernels.moe_routing import plan
from tessera_kernels.moe_routing.routing import RoutingPlan
from tessera_kernels.quantizers import (
    quantize_fp8,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
    quantize_nvfp4,
    quantize_scaled,
)
from tessera_kernels.storage.quantized_weight import NIBBLES, QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight
from tessera_kernels.weight_only_linear.cost import bytes_like

FP8 = torch.float8_e4m3fn
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 1e-2}
SCHEMES: dict[str, Callable[[torch.Tensor], ExpertsWeight]] = {
    "bf16": lambda weight: QuantizedWeight("dense", weight.shape[1], 64, weight),
    "int4 g128": quantize_int4,
    "int8": quantize_int8,
    "fp8": quantize_fp8,
    "mxfp4": quantize_mxfp4,
    "nvfp4": quantize_nvfp4,
    "int8 by int8": lambda weight: quantize_scaled(weight, torch.int8),
    "fp8 by fp8": lambda weight: quantize_scaled(weight, FP8),
    "fp8 by fp8 in blocks": lambda weight: quantize_scaled(weight, FP8, "block"),
}


@dataclass(frozen=True)
class _Sizes:
    tokens: int
    chosen: int
    experts: int
    outputs: int
    inputs: int
    gated: bool


def cases() -> Iterator[BenchCase]:
    """Every scheme for both products of Qwen3, and tiny shapes of every scheme and dtype."""
    model = QWEN3_30B_A3B
    for scheme in SCHEMES:
        for tokens in (16, 8192):
            counts = tokens, model.chosen, model.experts
            up = _Sizes(*counts, 2 * model.inner, model.hidden, gated=True)
            down = _Sizes(*counts, model.hidden, model.inner, gated=False)
            yield _case(f"{model.name} gate and up {tokens} tokens {scheme}", scheme, up, torch.bfloat16)
            yield _case(f"{model.name} down {tokens} tokens {scheme}", scheme, down, torch.bfloat16)
        for dtype in BOUNDS:
            name = f"tiny {scheme} in {str(dtype).removeprefix('torch.')}"
            yield _case(f"{name} gated", scheme, _Sizes(5, 2, 3, 40, 200, gated=True), dtype, tiny=True)
            yield _case(name, scheme, _Sizes(5, 2, 3, 24, 130, gated=False), dtype, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Configurations by scheme and product, from one token for each expert to many; the plan sets tiles of tokens."""
    from tessera_kernels.grouped_gemm.triton import bucket  # noqa: PLC0415 - Triton is needed for buckets alone

    model = QWEN3_30B_A3B
    for scheme, quantize in SCHEMES.items():
        sample = quantize(torch.zeros(1, 128, dtype=torch.bfloat16))
        if isinstance(sample, ScaledWeight):
            dtype = f"scaled {sample.elements_NK.dtype}{' blocks' if sample.blocked else ''}".replace("torch.", "")
            more: tuple[dict[str, int], ...] = ({"B_K": 128},)
        else:
            dtype = f"{sample.format} bfloat16"
            more = ({"AFTER": 0}, {"AFTER": 1}) if sample.format in NIBBLES else ({"AFTER": 0},)
        # Schemes with tiles of at most 64 have the same tile for more tokens.
        for tokens in (16, 512, 1024, 8192)[: 3 if dtype.split()[0] in NIBBLES or "blocks" in dtype else 4]:
            counts = tokens, model.chosen, model.experts
            for sizes in (
                _Sizes(*counts, 2 * model.inner, model.hidden, gated=True),
                _Sizes(*counts, model.hidden, model.inner, gated=False),
            ):
                held = tile_for(
                    tokens * model.chosen, _by_expert(quantize(torch.zeros(model.experts, 128)), model.experts)
                )
                yield TuningChoice(
                    dtype,
                    bucket(held, sizes.outputs, sizes.inputs, gated=sizes.gated),
                    partial(_make_inputs, scheme, sizes, torch.bfloat16),
                    _launch_with,
                    [
                        {"B_N": rows, "SPLITS": 1, "num_warps": warps, "num_stages": stages, **other}
                        for rows, warps in ((64, 4), (64, 8), (128, 4), (128, 8))
                        for stages in (2, 3, 4)
                        for other in more
                    ],
                )


def _case(name: str, scheme: str, sizes: _Sizes, dtype: torch.dtype, *, tiny: bool = False) -> BenchCase:
    sample = SCHEMES[scheme](torch.zeros(1, 128, dtype=dtype))
    assignments = sizes.tokens * sizes.chosen
    if isinstance(sample, ScaledWeight):
        each, unit = 1.0 * sizes.outputs * sizes.inputs, "int8" if sample.elements_NK.dtype == torch.int8 else "fp8"
    else:
        each, unit = bytes_like(sample, sizes.outputs, sizes.inputs), None
    rows = sizes.tokens if sizes.gated else assignments
    product = ProductSizes(rows, assignments, sizes.outputs, sizes.inputs, sizes.gated)
    return BenchCase(
        name=name,
        make=partial(_make_inputs, scheme, sizes, dtype),
        run=_launch,
        exact=reference.grouped_gemm,
        bound=BOUNDS[dtype],
        # With fewer assignments than experts, not all weights are read.
        cost=cost(product, each * min(sizes.experts, assignments), dtype, unit),
        tiny=tiny,
    )


def _make_inputs(scheme: str, sizes: _Sizes, dtype: torch.dtype, device: torch.device) -> tuple[Any, ...]:
    shape = sizes.experts * sizes.outputs, sizes.inputs
    weight = _by_expert(SCHEMES[scheme]((torch.randn(shape, device=device) / 32).to(dtype)), sizes.experts)
    # Experts in turn, so that as many experts as possible have a token, as the cost assumes.
    assignments = sizes.tokens * sizes.chosen
    experts_TC = (torch.arange(assignments, device=device) % sizes.experts).int().reshape(sizes.tokens, sizes.chosen)
    places: RoutingPlan = plan(experts_TC, sizes.experts, tile_for(assignments, weight))
    x_RK = torch.randn(sizes.tokens if sizes.gated else assignments, sizes.inputs, device=device).to(dtype)
    return x_RK, weight, places, assignments, None, sizes.gated


def _by_expert(weight: ExpertsWeight, experts: int) -> ExpertsWeight:
    """Split a weight with the outputs of all experts one after another, quantized at once, into one weight for each."""

    def front(tensor: torch.Tensor | None, dim: int) -> torch.Tensor | None:
        if tensor is None:
            return None
        raw = tensor.view(torch.uint8) if tensor.dtype == FP8 else tensor
        shape = *tensor.shape[:dim], experts, tensor.shape[dim] // experts, *tensor.shape[dim + 1 :]
        return raw.reshape(shape).movedim(dim, 0).contiguous().view(tensor.dtype)

    if isinstance(weight, ScaledWeight):
        scale = weight.scale
        if weight.blocked:  # a block may hold outputs of two experts: each gets the scales at its own first output
            size = weight.elements_NK.shape[0] // experts
            first = torch.arange(0, experts * size, size, device=scale.device)[:, None]
            scale = scale[((first + torch.arange(0, size, 128, device=scale.device)) // 128)].contiguous()
        else:
            scale = scale.reshape(experts, -1)
        elements = front(weight.elements_NK, 0)
        assert elements is not None
        return ScaledWeight(elements, scale)
    elements = front(weight.elements, weight.elements.ndim - 2)
    assert elements is not None
    whole = None if weight.tensor_scale is None else weight.tensor_scale.expand(experts).contiguous()
    scales, zeros = front(weight.scale_GN, 1), front(weight.zero_GN, 1)
    return replace(weight, elements=elements, scale_GN=scales, zero_GN=zeros, tensor_scale=whole)


def _launch(*arguments: Any) -> torch.Tensor:
    from tessera_kernels.grouped_gemm import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.grouped_gemm(*arguments)


def _launch_with(config: LaunchConfig, *arguments: Any) -> torch.Tensor:
    from tessera_kernels.grouped_gemm import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.grouped_gemm(*arguments, configuration=config)
