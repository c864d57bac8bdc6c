"""Benchmark cases of `attention`: self and cross attention of Wan, exact and quantized, and Whisper's encoder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from tessera_kernels.attention import reference
from tessera_kernels.attention.cost import cost
from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import WAN_14B, WHISPER_LARGE

BOUNDS = {"": 8e-3, "int8": 3e-2, "int8, fp8": 5e-2}
"""Bound on the relative RMS error by scheme of quantization; float32 without quantization is held to 1e-5."""


def cases() -> Iterator[BenchCase]:
    """Self attention of Wan, exact and quantized, its cross attention to text, Whisper's encoder, and tiny shapes."""
    video, speech = WAN_14B, WHISPER_LARGE
    for scheme in BOUNDS:
        label = f" {scheme}" if scheme else ""
        yield _case(f"Wan-14B self bf16{label}", 1, video.tokens, video.tokens, video.heads, 128, scheme, goal=0.65)
    yield _case("Wan-14B text bf16", 1, video.tokens, 512, video.heads, 128, "")
    yield _case("Whisper-large encoder 16 bf16", 16, speech.tokens, speech.tokens, speech.heads, 64, "")
    for scheme in BOUNDS:
        dtype = torch.bfloat16 if scheme else torch.float32
        yield _case(f"tiny {scheme or 'fp32'}", 2, 20, 37, 2, 32, scheme, dtype=dtype, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Tile sizes, warps and stages for the head dims of both models."""
    from tessera_kernels.attention.triton import scheme as named  # noqa: PLC0415 - Triton is needed for names alone

    for scheme in BOUNDS:
        for heads, dim, tokens in ((WAN_14B.heads, 128, 8192), (WHISPER_LARGE.heads, 64, 1500)):
            configs = [
                {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": rows // 16, "num_stages": stages}
                for rows in (64, 128)
                for keys in (32, 64, 128)
                for stages in (1, 2, 3, 4)
            ]
            kind = named(torch.bfloat16, int8_scores="int8" in scheme, float8_values="fp8" in scheme)
            make = partial(_make_inputs, 1, tokens, tokens, heads, dim, torch.bfloat16)
            yield TuningChoice(kind, f"D{dim} many", make, partial(_launch_with, scheme), configs)


def _case(
    name: str,
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    dim: int,
    scheme: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    goal: float | None = None,
    tiny: bool = False,
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, batch, queries, keys, heads, dim, dtype),
        run=partial(_launch, scheme),
        exact=_exact,
        bound=1e-5 if dtype == torch.float32 else BOUNDS[scheme],
        cost=cost(batch, queries, keys, heads, dim, dtype, int8_scores="int8" in scheme),
        peers={} if tiny else {"SDPA": _sdpa},
        tiny=tiny,
        goal=goal,
    )


def _make_inputs(
    batch: int, queries: int, keys: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    return [torch.randn(batch, count, heads, dim, device=device).to(dtype) for count in (queries, keys, keys)]


def _launch(
    scheme: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, configuration: LaunchConfig | None = None
) -> torch.Tensor:
    from tessera_kernels.attention import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.attention(
        query,
        key,
        value,
        scaling=query.shape[3] ** -0.5,
        int8_scores="int8" in scheme,
        float8_values="fp8" in scheme,
        configuration=configuration,
    )


def _launch_with(
    scheme: str, config: LaunchConfig, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    return _launch(scheme, query, key, value, config)


def _exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return reference.attention(query.float(), key.float(), value.float(), scaling=query.shape[3] ** -0.5)


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
