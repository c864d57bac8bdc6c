"""Benchmark cases of `scaled_linear`: quantizing tokens, and quantizing and multiplying together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, WAN_14B
from tessera_kernels.quantizers import quantize_scaled
from tessera_kernels.quantizers.scaled import Grain
from tessera_kernels.scaled_linear import reference
from tessera_kernels.scaled_linear.cost import cost, quantize_cost
from tessera_kernels.storage.scaled_weight import ScaledWeight

BOUNDS = {torch.float32: 2e-3, torch.float16: 3e-3, torch.bfloat16: 1e-2}
"""Bounds on the relative RMS error against the reference, which quantizes in the same way.

    Few values half way between two steps are rounded to the other step.
"""
FP8 = torch.float8_e4m3fn
SCHEMES: Mapping[str, tuple[torch.dtype, Grain]] = {
    "int8": (torch.int8, "output"),
    "fp8 tensor": (FP8, "tensor"),
    "fp8": (FP8, "output"),
    "fp8 blocks": (FP8, "block"),
}
Arguments = tuple[torch.Tensor, ScaledWeight, torch.Tensor, torch.Tensor]


def cases() -> Iterator[BenchCase]:
    """Layers of Llama-3-8B and Wan, in decode and prefill; quantizing alone; tiny shapes of every scheme and dtype."""
    bf16 = torch.bfloat16
    wide = (2 * LLAMA_3_8B.inner, LLAMA_3_8B.hidden)
    for scheme in SCHEMES:
        for tokens in (16, 64, 8192):
            yield _case(f"Llama-3-8B gate and up {tokens} tokens {scheme}", scheme, tokens, wide, bf16)
        yield _case(
            f"Wan-14B up {WAN_14B.tokens} tokens {scheme}",
            scheme,
            WAN_14B.tokens,
            (WAN_14B.inner, WAN_14B.hidden),
            bf16,
        )
    for dtype, blocks in ((torch.int8, False), (FP8, False), (FP8, True)):
        short = f"{'int8' if dtype == torch.int8 else 'fp8'}{' by 128' if blocks else ''}"
        name = f"round 8192 tokens of Llama-3-8B to {short}"
        yield _quantizing(name, 8192, LLAMA_3_8B.hidden, dtype, blocks)
        yield _quantizing(f"tiny {name}", 3, 200, dtype, blocks, tiny=True)
    for scheme in SCHEMES:
        for dtype in BOUNDS:
            name = f"tiny {scheme} {str(dtype).removeprefix('torch.')}"
            yield _case(name, scheme, 20, (150, 200), dtype, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Tiles, stages and warps by scheme, for decode and prefill."""
    from tessera_kernels.scaled_linear.triton import bucket  # noqa: PLC0415 - Triton is needed for buckets alone

    shape = (2 * LLAMA_3_8B.inner, LLAMA_3_8B.hidden)
    for scheme, (stored, grain) in SCHEMES.items():
        if grain == "tensor":
            continue  # the kernel makes no difference between equal scales and others
        kind = str(stored).removeprefix("torch.") + (" blocks" if grain == "block" else "")
        for tokens in (16, 64, 128, 256, 8192):
            configs = [
                {"B_T": held, "B_N": rows, "B_K": 128, "SPLITS": splits, "num_warps": warps, "num_stages": stages}
                for held in ((max(16, tokens),) if tokens <= 64 else (64, 128, 256))
                for rows, warps in ((64, 4), (128, 4), (128, 8))
                for splits in ((1, 2, 4) if tokens <= 64 and stored == FP8 else (1,))
                for stages in (3, 4)
            ]
            yield TuningChoice(
                kind,
                bucket(tokens, *shape, invariant=False),
                partial(_make_inputs, scheme, tokens, shape, torch.bfloat16),
                _launch_with,
                configs,
            )


def _case(
    name: str, scheme: str, tokens: int, shape: tuple[int, int], dtype: torch.dtype, *, tiny: bool = False
) -> BenchCase:
    peers: dict[str, Callable[..., torch.Tensor]] = {"cuBLAS bf16, nothing rounded": _torch}
    if scheme == "fp8 tensor":
        peers["torch._scaled_mm, inputs rounded before"] = _scaled_mm
    return BenchCase(
        name=name,
        make=partial(_make_inputs, scheme, tokens, shape, dtype),
        run=_launch,
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(tokens, *shape, SCHEMES[scheme][0], dtype),
        peers={} if tiny else peers,
        tiny=tiny,
        goal=0.75 if SCHEMES[scheme][0] == FP8 and tokens >= 8192 else None,
    )


def _quantizing(
    name: str, tokens: int, inputs: int, dtype: torch.dtype, blocks: bool, *, tiny: bool = False
) -> BenchCase:
    return BenchCase(
        name=name,
        make=lambda device: (torch.randn(tokens, inputs, device=device).bfloat16(),),
        run=partial(_quantize, dtype=dtype, blocks=blocks),
        exact=lambda x_TK: reference.quantize_tokens(x_TK, dtype, blocks=blocks),
        bound=2e-3,
        cost=quantize_cost(tokens, inputs, torch.bfloat16),
        tiny=tiny,
    )


def _make_inputs(
    scheme: str, tokens: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Arguments:
    weight_NK = torch.randn(shape, device=device) / 64
    stored, grain = SCHEMES[scheme]
    x_TK = torch.randn(tokens, shape[1], device=device).to(dtype)
    return x_TK, quantize_scaled(weight_NK, stored, grain), weight_NK.to(dtype), x_TK.to(FP8)


def _launch(
    x_TK: torch.Tensor,
    weight: ScaledWeight,
    _dense: torch.Tensor,
    _rounded: torch.Tensor,
    configuration: LaunchConfig | None = None,
) -> torch.Tensor:
    from tessera_kernels.scaled_linear import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.scaled_linear(x_TK, weight, None, configuration=configuration)


def _launch_with(config: LaunchConfig, x_TK: torch.Tensor, weight: ScaledWeight, *rest: torch.Tensor) -> torch.Tensor:
    return _launch(x_TK, weight, rest[0], rest[1], config)


def _quantize(x_TK: torch.Tensor, *, dtype: torch.dtype, blocks: bool) -> Any:
    from tessera_kernels.scaled_linear import quantize  # noqa: PLC0415 - Triton is needed to run alone

    return quantize.quantize_tokens(x_TK, dtype, blocks=blocks)


def _exact(x_TK: torch.Tensor, weight: ScaledWeight, *_: torch.Tensor) -> torch.Tensor:
    return reference.scaled_linear(x_TK, weight, None)


def _torch(x_TK: torch.Tensor, _weight: ScaledWeight, dense_NK: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x_TK, dense_NK)


def _scaled_mm(x_TK: torch.Tensor, weight: ScaledWeight, _: torch.Tensor, quantized_TK: torch.Tensor) -> torch.Tensor:
    one = torch.ones((), device=x_TK.device)
    return torch._scaled_mm(quantized_TK, weight.elements_NK.t(), one, one, out_dtype=x_TK.dtype)
