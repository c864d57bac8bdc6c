"""Benchmark cases of `weight_only_linear`, mostly with few tokens: decoding is limited by reading weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, WHISPER_LARGE
from tessera_kernels.quantizers import quantize_fp8, quantize_int4, quantize_int8, quantize_mxfp4, quantize_nvfp4
from tessera_kernels.storage.quantized_weight import NIBBLES, QuantizedWeight
from tessera_kernels.weight_only_linear import reference
from tessera_kernels.weight_only_linear.cost import bytes_like, cost

Quantize = Callable[[torch.Tensor], QuantizedWeight]
BOUNDS = {torch.float32: 1e-5, torch.float16: 1.5e-3, torch.bfloat16: 8e-3}


def _dense(weight_NK: torch.Tensor) -> QuantizedWeight:
    return QuantizedWeight("dense", weight_NK.shape[1], 64, weight_NK)


SCHEMES: dict[str, Quantize] = {
    "int4 g128": quantize_int4,
    "int4 g32": partial(quantize_int4, group=32),
    "int4 g128 zero points": partial(quantize_int4, symmetric=False),
    "int8": quantize_int8,
    "int8 g32": partial(quantize_int8, group=32),
    "fp8": quantize_fp8,
    "mxfp4": quantize_mxfp4,
    "nvfp4": quantize_nvfp4,
    "dense": _dense,
}
LAYERS = {
    "gate and up": (2 * LLAMA_3_8B.inner, LLAMA_3_8B.hidden),
    "down": (LLAMA_3_8B.hidden, LLAMA_3_8B.inner),
    "query, key, value": (LLAMA_3_8B.hidden + 2 * LLAMA_3_8B.kv_heads * LLAMA_3_8B.head_dim, LLAMA_3_8B.hidden),
}
"""Outputs and inputs of the layers of Llama-3-8B."""


def cases() -> Iterator[BenchCase]:
    """Every scheme for one layer; int4 for all layers, from one token to prefill; tiny shapes of each scheme."""
    bf16 = torch.bfloat16
    wide = LAYERS["gate and up"]
    for scheme in SCHEMES:
        for tokens in (1, 16):
            yield _case(f"Llama-3-8B gate and up {tokens} tokens {scheme}", scheme, tokens, wide, bf16)
    for layer, shape in LAYERS.items():
        for tokens in (1, 4, 8, 16, 64, 2048):
            if layer != "gate and up" or tokens not in {1, 16}:
                yield _case(f"Llama-3-8B {layer} {tokens} tokens int4 g128", "int4 g128", tokens, shape, bf16)
    whisper = (WHISPER_LARGE.inner, WHISPER_LARGE.hidden)
    yield _case("Whisper-large up 1500 tokens int8", "int8", 1500, whisper, torch.float16)
    yield _case(
        "Llama-3-8B down 1 token int4 g128 batch-invariant", "int4 g128", 1, LAYERS["down"], bf16, invariant=True
    )
    yield _case("Llama-3-8B down 64 tokens dense batch-invariant", "dense", 64, LAYERS["down"], bf16, invariant=True)
    for scheme in SCHEMES:
        for tokens, dtype, invariant in ((1, bf16, False), (5, torch.float16, False), (5, torch.float32, True)):
            name = (
                f"tiny {scheme} {tokens} {str(dtype).removeprefix('torch.')}{' batch-invariant' if invariant else ''}"
            )
            yield _case(name, scheme, tokens, (40, 200), dtype, invariant=invariant, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Tiles, parts and warps by scheme, layer and number of tokens."""
    from tessera_kernels.weight_only_linear.triton import bucket  # noqa: PLC0415 - Triton is needed for buckets alone

    for scheme in ("int4 g128", "int8", "fp8", "mxfp4", "nvfp4", "dense"):
        form = scheme.split()[0]
        for outputs, inputs in (LAYERS["gate and up"], LAYERS["down"]):
            for tokens in (1, 2, 4, 8, 16, 32, 64, 2048):
                yield TuningChoice(
                    f"{form} bfloat16",
                    bucket(tokens, outputs, inputs, invariant=False),
                    partial(_make_inputs, scheme, tokens, (outputs, inputs), torch.bfloat16, False),
                    _launch_with,
                    configs(tokens),
                )


def configs(tokens: int) -> list[dict[str, int]]:
    """Configurations to tune for a number of tokens."""
    found: list[dict[str, int]] = []
    if tokens <= 8:
        found += [
            {"GEMV": 1, "B_N": rows, "SPLITS": splits, "num_warps": warps, "num_stages": 3}
            for rows, warps in ((16, 4), (32, 8))
            for splits in (1, 4, 8)
        ]
    held = max(16, min(tokens, 128))
    found += [
        {"GEMV": 0, "B_T": held, "B_N": rows, "SPLITS": parts, "AFTER": after, "num_warps": warps, "num_stages": stages}
        for rows, warps in ((64, 4), (128, 8 if held > 16 else 4))
        for parts in ((1, 4) if tokens <= 64 else (1,))
        for after in ((1,) if tokens <= 16 else (0, 1) if tokens <= 64 else (0,))
        for stages in ((4,) if tokens <= 64 else (3, 4))
    ]
    return found


def _case(
    name: str,
    scheme: str,
    tokens: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    *,
    invariant: bool = False,
    tiny: bool = False,
) -> BenchCase:
    sample = SCHEMES[scheme](torch.zeros(1, 128, dtype=dtype))
    return BenchCase(
        name=name,
        make=partial(_make_inputs, scheme, tokens, shape, dtype, invariant),
        run=_launch,
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(tokens, *shape, bytes_like(sample, *shape), dtype),
        peers={} if tiny else {f"cuBLAS {str(dtype).removeprefix('torch.')}": _torch},
        tiny=tiny,
        goal=0.8 if sample.format in NIBBLES and tokens <= 16 and not invariant else None,
    )


def _make_inputs(
    scheme: str, tokens: int, shape: tuple[int, int], dtype: torch.dtype, invariant: bool, device: torch.device
) -> tuple[Any, ...]:
    weight_NK = (torch.randn(shape, device=device) / 64).to(dtype)
    return torch.randn(tokens, shape[1], device=device).to(dtype), SCHEMES[scheme](weight_NK), weight_NK, invariant


def _launch(
    x_TK: torch.Tensor,
    weight: QuantizedWeight,
    _: torch.Tensor,
    invariant: bool,
    configuration: LaunchConfig | None = None,
) -> torch.Tensor:
    from tessera_kernels.weight_only_linear import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.weight_only_linear(x_TK, weight, None, invariant=invariant, configuration=configuration)


def _launch_with(
    config: LaunchConfig, x_TK: torch.Tensor, weight: QuantizedWeight, dense_NK: torch.Tensor, invariant: bool
) -> torch.Tensor:
    return _launch(x_TK, weight, dense_NK, invariant, config)


def _exact(x_TK: torch.Tensor, weight: QuantizedWeight, *_: Any) -> torch.Tensor:
    return reference.weight_only_linear(x_TK, weight, None)


def _torch(x_TK: torch.Tensor, _weight: QuantizedWeight, dense_NK: torch.Tensor, _invariant: bool) -> torch.Tensor:
    return torch.nn.functional.linear(x_TK, dense_NK)
