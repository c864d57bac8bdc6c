"""Benchmark cases of `moe_routing`: routing and sorting, for a decode step and for prefill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tessera_kernels.bench.cases import BenchCase, unequal
from tessera_kernels.bench.shapes import QWEN3_30B_A3B
from tessera_kernels.moe_routing import RoutingRule, reference
from tessera_kernels.moe_routing.cost import plan_cost, route_cost

DEEPSEEK_V3 = RoutingRule(8, "sigmoid", 8, 4, factor=2.5)


def cases() -> Iterator[BenchCase]:
    """The routers of Qwen3 and DeepSeek-V3, sorting with the tiles of decode and prefill, and tiny shapes of both."""
    experts, chosen = QWEN3_30B_A3B.experts, QWEN3_30B_A3B.chosen
    for tokens in (64, 8192):
        yield _routing(f"route {tokens} tokens Qwen3-30B-A3B", tokens, experts, RoutingRule(chosen), biased=False)
        yield _routing(f"route {tokens} tokens DeepSeek-V3", tokens, 256, DEEPSEEK_V3, biased=True)
        yield _planning(f"sort {tokens} tokens Qwen3-30B-A3B", tokens, experts, chosen, 16 if tokens == 64 else 128)
    yield _routing("tiny route softmax", 5, 12, RoutingRule(3), biased=False, tiny=True)
    yield _routing("tiny route sigmoid in groups", 5, 24, RoutingRule(4, "sigmoid", 4, 2), biased=True, tiny=True)
    yield _planning("tiny sort", 30, 5, 2, 16, tiny=True)


def _routing(name: str, tokens: int, experts: int, rule: RoutingRule, *, biased: bool, tiny: bool = False) -> BenchCase:
    def make(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
        # All logits of a token differ by more than rounding, because either of two near equals may be chosen.
        logits_TE = torch.rand(tokens, experts, device=device).argsort(-1) / 32
        return logits_TE, torch.rand(experts, device=device).argsort() * 0.0037 if biased else None

    def run(logits_TE: torch.Tensor, bias_E: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        from tessera_kernels.moe_routing import triton  # noqa: PLC0415 - Triton is needed to run alone

        return triton.route(logits_TE, rule, bias_E)

    return BenchCase(
        name=name,
        make=make,
        run=run,
        exact=lambda logits_TE, bias_E: reference.route(logits_TE, rule, bias_E),
        bound=1e-3,
        cost=route_cost(tokens, experts, rule.chosen, torch.float32),
        tiny=tiny,
    )


def _planning(name: str, tokens: int, experts: int, chosen: int, tile: int, *, tiny: bool = False) -> BenchCase:
    def run(experts_TC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from tessera_kernels.moe_routing import triton  # noqa: PLC0415 - Triton is needed to run alone

        return triton.plan(experts_TC, experts, tile)

    return BenchCase(
        name=name,
        make=lambda device: (torch.rand(tokens, experts, device=device).argsort(-1)[:, :chosen].int().contiguous(),),
        run=run,
        exact=lambda experts_TC: reference.plan(experts_TC, experts, tile),
        bound=0.0,
        cost=plan_cost(tokens, chosen),
        tiny=tiny,
        error=unequal,
    )
