"""Benchmark cases of `rotary`: text models by inverse frequencies, video with three axes and by table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import LLAMA_3_8B, QWEN3_30B_A3B, WAN_14B, ModelShape
from tessera_kernels.rotary import axes_of, reference
from tessera_kernels.rotary.cost import cost

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
BF16 = torch.bfloat16
GOAL, MANY = 0.85, 8192
"""Fraction of the roofline to reach, and the number of tokens from which a case has this goal."""
WAN_SECTIONS = (22, 21, 21)
FURTHEST = 4096
"""Upper bound of the random positions, below which float32 angles of two devices agree within `BOUNDS`."""


def cases() -> Iterator[BenchCase]:
    """Few tokens and many of text models, the tokens of a video, and tiny shapes of every kind."""
    for model in (LLAMA_3_8B, QWEN3_30B_A3B):
        for tokens in (64, 8192):
            yield _case(f"{model.name} {tokens} tokens bf16", model, tokens, BF16)
    yield _case(f"Wan-14B {WAN_14B.tokens} tokens bf16 3-D", WAN_14B, WAN_14B.tokens, BF16, sections=WAN_SECTIONS)
    yield _case(f"Wan-14B {WAN_14B.tokens} tokens bf16 by table", WAN_14B, WAN_14B.tokens, BF16, table=True)
    small = ModelShape("tiny", 0, 0, heads=2, kv_heads=1, head_dim=20)
    for dtype, kind in ((torch.float32, "fp32"), (BF16, "bf16")):
        for interleaved in (False, True):
            way = "interleaved" if interleaved else "halves"
            yield _case(f"tiny {kind} {way} 1-D", small, 3, dtype, interleaved=interleaved, tiny=True)
            sections = (3, 2, 2)
            yield _case(f"tiny {kind} {way} 3-D", small, 3, dtype, sections, interleaved=interleaved, tiny=True)
            yield _case(f"tiny {kind} {way} 3-D, many", small, 130, dtype, sections, interleaved=interleaved, tiny=True)
            yield _case(f"tiny {kind} {way} by table", small, 3, dtype, table=True, interleaved=interleaved, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Heads and warps of a program, for text and video."""
    from tessera_kernels.rotary.triton import bucket, candidates  # noqa: PLC0415 - Triton is needed for tuning alone

    for model in (LLAMA_3_8B, WAN_14B):
        for tokens in (64, 8192):
            pairs = model.head_dim // 2
            make = partial(_make_inputs, model, tokens, BF16, pairs, (pairs,), table=False, interleaved=False)
            yield TuningChoice(
                "bfloat16", bucket(tokens, model.heads, pairs), make, _launch_with, candidates(tokens, pairs)
            )


def _case(
    name: str,
    model: ModelShape,
    tokens: int,
    dtype: torch.dtype,
    sections: tuple[int, ...] | None = None,
    *,
    table: bool = False,
    interleaved: bool | None = None,
    tiny: bool = False,
) -> BenchCase:
    pairs = sum(sections) if sections else model.head_dim // 2
    neighbours = model is WAN_14B if interleaved is None else interleaved
    runs = sections or (pairs,)
    return BenchCase(
        name=name,
        make=partial(_make_inputs, model, tokens, dtype, pairs, runs, table=table, interleaved=neighbours),
        run=partial(_launch_with, None),
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(tokens, model.heads + model.kv_heads, pairs, dtype, table=4 * table, axes=len(runs)),
        tiny=tiny,
        goal=GOAL if tokens >= MANY else None,
    )


def _make_inputs(
    model: ModelShape,
    tokens: int,
    dtype: torch.dtype,
    pairs: int,
    sections: tuple[int, ...],
    device: torch.device,
    *,
    table: bool,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    heads = model.heads + 2 * model.kv_heads
    packed_THD = torch.randn(tokens, heads, model.head_dim, device=device).to(dtype)
    query_THD, key_TGD = packed_THD[:, : model.heads], packed_THD[:, model.heads : -model.kv_heads]
    angles: dict[str, Any] = {"interleaved": interleaved}
    if table:
        angle_TF = torch.rand(tokens, pairs, device=device) * 6.3
        return query_THD, key_TGD, angles | {"positions": None, "cos_PF": angle_TF.cos(), "sin_PF": angle_TF.sin()}
    angles["positions"] = torch.randint(FURTHEST, (tokens, len(sections)), device=device)
    angles["inverse_F"] = 10000.0 ** -(torch.arange(pairs, device=device) / pairs)
    return query_THD, key_TGD, angles | {"axis_F": axes_of(sections, device) if len(sections) > 1 else None}


def _launch_with(
    config: LaunchConfig | None, query_THD: torch.Tensor, key_TGD: torch.Tensor, angles: dict[str, Any]
) -> list[torch.Tensor]:
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - Triton is needed to run alone

    triton.rotary(query_THD, key_TGD, **angles, configuration=config)
    return [query_THD, key_TGD]


def _exact(query_THD: torch.Tensor, key_TGD: torch.Tensor, angles: dict[str, Any]) -> list[torch.Tensor]:
    if "cos_PF" in angles:
        tables = (angles["cos_PF"], angles["sin_PF"])
        reference.rotary_by_table(query_THD, key_TGD, *tables, None, angles["interleaved"])
    else:
        by = (angles["positions"], angles["inverse_F"], angles["axis_F"])
        reference.rotary(query_THD, key_TGD, *by, angles["interleaved"], 1.0)
    return [query_THD, key_TGD]
