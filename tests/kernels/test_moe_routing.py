"""Experts are chosen as the models' own routers choose, and every assignment has one place with its expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import poisoned, relative_rms

from tessera_kernels.moe_routing import RoutingPlan, RoutingRule, plan, reference, route
from tessera_kernels.moe_routing import triton as launcher


def independent(logits_E, rule, bias_E):
    """Route one token in float64, with Python's sorting."""
    scores = (logits_E.double().softmax(0) if rule.scoring == "softmax" else logits_E.double().sigmoid()).tolist()
    bias = [0.0] * len(scores) if bias_E is None else bias_E.double().tolist()
    choosing = [score + added for score, added in zip(scores, bias, strict=True)]
    size = len(scores) // rule.groups
    groups = [range(first, first + size) for first in range(0, len(scores), size)]
    counted = 1 if bias_E is None else 2
    worth = [sum(sorted((choosing[e] for e in group), reverse=True)[:counted]) for group in groups]
    best = sorted(range(rule.groups), key=lambda g: -worth[g])[: rule.chosen_groups]
    allowed = sorted(e for g in best for e in groups[g])
    chosen = sorted(allowed, key=lambda e: -choosing[e])[: rule.chosen]
    total = sum(scores[e] for e in chosen) if rule.renormalize else 1.0
    return [scores[e] / total * rule.factor for e in chosen], chosen


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 4),
    shape=st.sampled_from([(1, 1, 1, 1), (5, 1, 1, 3), (24, 1, 1, 24), (24, 4, 2, 6), (48, 8, 8, 5), (64, 8, 3, 8)]),
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    biased=st.booleans(),
    renormalize=st.booleans(),
    factor=st.sampled_from([1.0, 2.5]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_routing_equals_the_definition(tokens, shape, scoring, biased, renormalize, factor, dtype, seed):
    experts, groups, chosen_groups, chosen = shape
    generator = torch.Generator().manual_seed(seed)
    # All logits differ by more than rounding, because either of two near equals may be chosen.
    logits = torch.stack([torch.randperm(experts, generator=generator) for _ in range(tokens)]).float() / 16 - 1
    bias = torch.randperm(experts, generator=generator).float() * 0.37 if biased else None
    rule = RoutingRule(chosen, scoring, groups, chosen_groups, renormalize, factor)
    exact = [independent(row.to(dtype), rule, bias) for row in logits]
    out = poisoned(tokens, chosen, dtype=torch.float32), torch.full((tokens, chosen), -7, dtype=torch.int32)
    for weights, found in (launcher.route(logits.to(dtype), rule, bias, out=out), route(logits.to(dtype), rule, bias)):
        assert found.tolist() == [chosen for _, chosen in exact]
        assert relative_rms(weights, torch.tensor([weights for weights, _ in exact])) < 1e-5


def test_of_equal_experts_the_first_is_chosen_and_nan_is_visible():
    logits = torch.zeros(3, 6)
    logits[1, 4] = float("nan")
    for way in (launcher.route, reference.route):
        weights, experts = way(logits, RoutingRule(2), None)
        assert experts[0].tolist() == experts[2].tolist() == [0, 1]
        assert weights.isnan().any(1).tolist() == [False, True, False]
        assert ((experts >= 0) & (experts < 6)).all()


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(0, 40),
    chosen=st.integers(1, 3),
    experts=st.integers(1, 9),
    tile=st.sampled_from([16, 32]),
    lost=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_assignment_has_one_place_with_its_expert(tokens, chosen, experts, tile, lost, seed):
    generator = torch.Generator().manual_seed(seed)
    choices = torch.randint(-1 if lost else 0, experts, (tokens, chosen), generator=generator, dtype=torch.int32)
    tiles = reference.tiles_for(choices.numel(), experts, tile)
    out = torch.full((tiles * tile,), -7, dtype=torch.int32), torch.full((tiles,), -7, dtype=torch.int32)
    by_kernel = launcher.plan(choices, experts, tile, out=out)
    found = plan(choices, experts, tile)
    assert isinstance(found, RoutingPlan)
    if tokens:
        assert torch.equal(by_kernel[0], found.rows_P)
        assert torch.equal(by_kernel[1], found.experts_B)
    flat, seen = choices.flatten().tolist(), []
    for index, owner in enumerate(found.experts_B.tolist()):
        rows = found.rows_P[index * tile : index * tile + tile].tolist()
        own = [row for row in rows if row < len(flat)]
        assert all(flat[row] == owner for row in own)
        assert own == sorted(own)
        assert bool(own) == (owner >= 0)
        assert set(rows) - set(own) <= {len(flat)}
        seen += own
    assert sorted(seen) == [row for row, expert in enumerate(flat) if expert >= 0]


def test_what_does_not_fit_is_refused():
    for logits, rule, bias, match in (
        (torch.zeros(2, 6, dtype=torch.int32), RoutingRule(2), None, "logits must be float"),
        (torch.zeros(2, 2000), RoutingRule(2), None, "1024 experts"),
        (torch.zeros(2, 6), RoutingRule(2, "relu"), None, "softmax or sigmoid"),
        (torch.zeros(2, 6), RoutingRule(2, groups=4), None, "cannot be in 4 groups"),
        (torch.zeros(2, 6), RoutingRule(3, groups=3), None, "3 experts cannot be chosen"),
        (torch.zeros(2, 6), RoutingRule(1, groups=6), torch.zeros(6), "two best"),
        (torch.zeros(2, 6), RoutingRule(2), torch.zeros(5), "bias must be"),
    ):
        with pytest.raises(ValueError, match=match):
            route(logits, rule, bias)
    good = torch.zeros(2, 2, dtype=torch.int32)
    for experts, count, tile, match in (
        (good.long(), 4, 16, "int32"),
        (good, 4, 24, "a tile has"),
        (good, 0, 16, "1 to"),
    ):
        with pytest.raises(ValueError, match=match):
            plan(experts, count, tile)


def test_the_registered_ops_pass_opcheck():
    logits = torch.randn(3, 8)
    torch.library.opcheck(torch.ops.tessera.moe_route, (logits, None, 2, "softmax", 1, 1, True, 1.0))
    torch.library.opcheck(torch.ops.tessera.moe_plan, (torch.zeros(3, 2, dtype=torch.int32), 4, 16))

    def both(logits):
        found = plan(route(logits, RoutingRule(2))[1], 8, 16)
        return found.rows_P, found.experts_B

    compiled = torch.compile(both, backend="eager", fullgraph=True)
    assert all(torch.equal(one, other) for one, other in zip(compiled(logits), both(logits), strict=True))
