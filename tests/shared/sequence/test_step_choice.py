"""Policies of a step, without a scheduler: who is computed first, who is preempted, and when tokens are drafted."""

from __future__ import annotations

from collections import Counter

from tessera.sequence.batch import Chunk
from tessera.sequence.request import SequenceRequest
from tessera.sequence.step_choice import choose_victim, requests_to_draft, step_order
from tessera.wire.engine import Sampling


def request(name: str, computed: int, tokens: int = 9, **fields) -> SequenceRequest:
    return SequenceRequest(name, [0] * tokens, Sampling(max_tokens=4), computed=computed, **fields)


def test_decodes_come_before_prefills_then_priority_then_age():
    prefill, late, old, urgent = (
        request("prefill", 3, priority=-5),
        request("late", 8, priority=5),
        request("old", 8),
        request("urgent", 8, priority=-1),
    )
    young = request("young", 8)
    assert step_order([prefill, late, young, old, urgent], Counter()) == [urgent, old, young, late, prefill]


def test_of_the_lowest_priority_the_one_that_computed_least_is_preempted_and_the_youngest_of_equals():
    urgent, ahead, behind = request("urgent", 0), request("ahead", 8, priority=5), request("behind", 2, priority=5)
    assert choose_victim([urgent, ahead, behind], Counter()) is behind
    young = request("young", 2, priority=5)
    assert choose_victim([young, behind], Counter()) is young


def test_tokens_are_drafted_in_steps_that_only_decode():
    one, other = request("one", 8), request("other", 8)
    decodes = {own: Chunk(own, 8, 1) for own in (one, other)}
    assert requests_to_draft(decodes) == [one, other]
    prefill = request("prefill", 0)
    assert requests_to_draft(decodes | {prefill: Chunk(prefill, 0, 4)}) == []
    embedding = SequenceRequest("embedding", [0], None)
    assert requests_to_draft(decodes | {embedding: Chunk(embedding, 0, 1)}) == []
    assert requests_to_draft({}) == []
