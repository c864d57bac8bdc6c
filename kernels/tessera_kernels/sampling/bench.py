"""Benchmark cases of `sample`: vocabularies of language models, greedy, without filters and with filters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice, unequal
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B
from tessera_kernels.sampling import SEEN, reference
from tessera_kernels.sampling.cost import cost

BF16 = torch.bfloat16
FILTERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "free": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.95": {"top_p": 0.95},
    "top-k 50, top-p 0.9, min-p 0.02": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
}
MAX_UNEQUAL = 0.02
"""Fraction of rows that may differ from the reference, where two tokens tie but for rounding."""


def cases() -> Iterator[BenchCase]:
    """One row and many, with every combination of filters in `FILTERS`, and penalties."""
    for model in (LLAMA_3_8B, QWEN3_30B_A3B):
        for rows in (1, 64):
            for kind_of_filter in FILTERS:
                yield _case(
                    f"{model.name} {rows} rows bf16 {kind_of_filter}", rows, model.vocabulary, BF16, kind_of_filter
                )
    yield _case("Llama-3-8B 64 rows bf16 free, penalties", 64, LLAMA_3_8B.vocabulary, BF16, "free", penalties=True)
    for dtype, kind in ((torch.float32, "fp32"), (BF16, "bf16")):
        for kind_of_filter in FILTERS:
            yield _case(
                f"tiny {kind} {kind_of_filter}",
                3,
                5000,
                dtype,
                kind_of_filter,
                penalties=kind_of_filter == "top-k 50",
                tiny=True,
            )


def choices() -> Iterator[TuningChoice]:
    """Warps of the program of a row."""
    from tessera_kernels.sampling.triton import bucket  # noqa: PLC0415 - Triton is needed for buckets alone

    for vocabulary in (32768, LLAMA_3_8B.vocabulary, QWEN3_30B_A3B.vocabulary):
        make = partial(_make_inputs, 64, vocabulary, BF16, "top-p 0.95", penalties=False)
        yield TuningChoice(
            "bfloat16", bucket(vocabulary), make, _launch_with, [{"num_warps": warps} for warps in (8, 32)]
        )


def _case(
    name: str,
    rows: int,
    vocabulary: int,
    dtype: torch.dtype,
    kind_of_filter: str,
    *,
    penalties: bool = False,
    tiny: bool = False,
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, rows, vocabulary, dtype, kind_of_filter, penalties=penalties),
        run=partial(_launch_with, None),
        exact=reference.sample,
        bound=MAX_UNEQUAL,
        cost=cost(rows, vocabulary, dtype, penalties=penalties),
        peers={"torch, sorted": reference.sample} if kind_of_filter.startswith("top") else {},
        tiny=tiny,
        error=unequal,
    )


def _make_inputs(
    rows: int, vocabulary: int, dtype: torch.dtype, kind_of_filter: str, device: torch.device, *, penalties: bool
) -> tuple[Any, ...]:
    settings = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **FILTERS[kind_of_filter]}

    def every(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), settings[name], dtype=dtype, device=device)

    logits_BV = (torch.randn(rows, vocabulary, device=device) * 4).to(dtype)
    seed_B = torch.arange(rows, device=device) + 2**40
    drawn_BV, of_prompt_BV = (
        torch.randint(most, (rows, vocabulary), dtype=torch.int32, device=device) for most in (3, 2)
    )
    counts_BV = drawn_BV + SEEN * of_prompt_BV
    rates = [torch.full((rows,), rate, device=device) for rate in (1.1, 0.2, 0.1)] if penalties else [None] * 3
    return (
        logits_BV,
        every("temperature", torch.float32),
        every("top_k", torch.int32),
        every("top_p", torch.float32),
        every("min_p", torch.float32),
        seed_B,
        seed_B % 1000,
        counts_BV if penalties else None,
        *rates,
    )


def _launch_with(config: LaunchConfig | None, *arguments: torch.Tensor) -> torch.Tensor:
    from tessera_kernels.sampling import triton  # noqa: PLC0415 - Triton is needed to run alone

    return triton.sample(*arguments, configuration=config)
