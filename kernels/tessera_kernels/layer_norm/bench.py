"""Benchmark cases of `layer_norm`: blocks of Wan 14B with one modulation for a sample, and Whisper's plain norm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from tessera_kernels.bench.cases import BenchCase, LaunchConfig, TuningChoice
from tessera_kernels.bench.shapes import WAN_14B, WHISPER_LARGE
from tessera_kernels.layer_norm import reference
from tessera_kernels.layer_norm.cost import cost, residual_cost

EPSILON = 1e-6
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
BF16 = torch.bfloat16
TUNED_WIDTHS = (1280, 3072, 5120)
GOAL = 0.85
"""Fraction of the roofline that every realistic case should reach."""
Inputs = dict[str, Any]


def cases() -> Iterator[BenchCase]:
    """Plain, modulated, after a gated residual, and the residual alone."""
    whisper, wan = WHISPER_LARGE, WAN_14B
    name = f"Whisper-large 8 x {whisper.tokens} rows bf16"
    yield _case(name, 8, whisper.tokens, whisper.hidden, BF16, affine=True, peers={"torch layer_norm": _torch})
    yield _case(f"Wan-14B {wan.tokens} rows bf16 modulated", 1, wan.tokens, wan.hidden, BF16, modulated=True)
    name = f"Wan-14B {wan.tokens} rows bf16 gated residual, modulated"
    yield _case(name, 1, wan.tokens, wan.hidden, BF16, modulated=True, added=True)
    yield _residual(f"Wan-14B {wan.tokens} rows bf16 gated residual alone", 1, wan.tokens, wan.hidden, BF16)
    for dtype, kind in ((torch.float32, "fp32"), (BF16, "bf16")):
        yield _case(f"tiny {kind} affine", 2, 3, 70, dtype, affine=True, tiny=True)
        yield _case(f"tiny {kind} modulated", 2, 3, 70, dtype, modulated=True, tiny=True)
        yield _case(f"tiny {kind} gated, a modulation a token", 2, 3, 70, dtype, steps=3, added=True, tiny=True)
        yield _residual(f"tiny {kind} gated residual alone", 2, 3, 70, dtype, tiny=True)


def choices() -> Iterator[TuningChoice]:
    """Rows and warps of a program, for the widths of models."""
    from tessera_kernels.layer_norm.triton import bucket, candidates  # noqa: PLC0415 - Triton is needed here alone

    for channels in TUNED_WIDTHS:
        for rows in (64, 16384):
            make = partial(_make_inputs, 1, rows, channels, BF16, 1, modulated=True, added=True)
            configs = candidates(channels)
            if len(configs) > 1:
                yield TuningChoice("bfloat16", bucket(channels, rows), make, _launch_with, configs)


def _case(
    name: str,
    samples: int,
    tokens: int,
    channels: int,
    dtype: torch.dtype,
    *,
    affine: bool = False,
    modulated: bool = False,
    added: bool = False,
    steps: int = 1,
    tiny: bool = False,
    peers: Any = None,
) -> BenchCase:
    modulations = (2 if modulated or added else 0) + added
    return BenchCase(
        name=name,
        make=partial(
            _make_inputs, samples, tokens, channels, dtype, steps, affine=affine, modulated=modulated, added=added
        ),
        run=partial(_launch_with, None),
        exact=_exact,
        bound=BOUNDS[dtype],
        cost=cost(
            samples * tokens,
            channels,
            dtype,
            vectors=2 * affine,
            modulations=modulations,
            modulated_rows=samples * steps,
            added=added,
        ),
        peers=peers or {},
        tiny=tiny,
        goal=None if tiny else GOAL,
    )


def _residual(
    name: str, samples: int, tokens: int, channels: int, dtype: torch.dtype, *, tiny: bool = False
) -> BenchCase:
    return BenchCase(
        name=name,
        make=partial(_make_inputs, samples, tokens, channels, dtype, 1, added=True),
        run=_run_residual,
        exact=_exact_residual,
        bound=BOUNDS[dtype],
        cost=residual_cost(samples * tokens, channels, dtype, modulated_rows=samples),
        tiny=tiny,
        goal=None if tiny else GOAL,
    )


def _make_inputs(
    samples: int,
    tokens: int,
    channels: int,
    dtype: torch.dtype,
    steps: int,
    device: torch.device,
    *,
    affine: bool = False,
    modulated: bool = False,
    added: bool = False,
) -> tuple[torch.Tensor, Inputs]:
    def drawn(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(kind)

    modulation = partial(drawn, samples, steps, channels, kind=torch.float32)
    inputs: Inputs = dict.fromkeys(("weight_C", "bias_C", "scale_BSC", "shift_BSC", "added_BTC", "gate_BSC"))
    if affine:
        inputs |= {"weight_C": drawn(channels), "bias_C": drawn(channels)}
    if modulated or added:
        inputs |= {"scale_BSC": modulation(), "shift_BSC": modulation()}
    if added:
        inputs |= {"added_BTC": drawn(samples, tokens, channels), "gate_BSC": modulation()}
    return drawn(samples, tokens, channels), inputs


def _launch_with(config: LaunchConfig | None, x_BTC: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415 - Triton is needed to run alone

    out = torch.empty_like(x_BTC)
    added = inputs["added_BTC"]
    triton.norm(
        x_BTC.flatten(0, 1),
        out_TC=out.flatten(0, 1),
        epsilon=EPSILON,
        tokens=x_BTC.shape[1],
        added_TC=None if added is None else added.flatten(0, 1),
        **{name: inputs[name] for name in ("weight_C", "bias_C", "scale_BSC", "shift_BSC", "gate_BSC")},
        configuration=config,
    )
    return [out, x_BTC]


def _exact(x_BTC: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
    if inputs["scale_BSC"] is None:
        return [reference.layer_norm(x_BTC, inputs["weight_C"], inputs["bias_C"], EPSILON), x_BTC]
    return [reference.adaptive_norm(x_BTC, epsilon=EPSILON, centered=True, **inputs), x_BTC]


def _run_residual(x_BTC: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    from tessera_kernels.layer_norm import triton  # noqa: PLC0415

    added_TC = inputs["added_BTC"].flatten(0, 1)
    triton.gated_residual(x_BTC.flatten(0, 1), added_TC, inputs["gate_BSC"], tokens=x_BTC.shape[1])
    return x_BTC


def _exact_residual(x_BTC: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    reference.gated_residual(x_BTC, inputs["added_BTC"], inputs["gate_BSC"])
    return x_BTC


def _torch(x_BTC: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x_BTC, x_BTC.shape[-1:], inputs["weight_C"], inputs["bias_C"], EPSILON)
