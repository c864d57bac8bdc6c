"""Speculation as a policy: what is drafted, how much, and when it does not pay."""

from __future__ import annotations

from tessera.sequence.request import SequenceRequest
from tessera.sequence.speculation.ngram_drafter import NGramDrafter
from tessera.sequence.speculation.policy import RETRY_AFTER_STEPS, Speculation
from tessera.wire.engine import Sampling


def request(tokens: list[int], left: int = 100) -> SequenceRequest:
    return SequenceRequest("r", tokens, Sampling(max_tokens=left))


def test_what_followed_the_longest_known_beginning_is_drafted():
    drafter = NGramDrafter()
    one = request([1, 2, 3, 4, 9, 9, 3, 4, 7, 1, 2, 3, 4])
    assert drafter.draft({one: 3}) == {one: [9, 9, 3]}
    assert drafter.draft({one: 1}) == {one: [9]}


def test_the_latest_place_counts_and_new_tokens_are_learnt():
    drafter = NGramDrafter()
    one = request([1, 2, 5, 1, 2, 6, 1, 2])
    assert drafter.draft({one: 1}) == {one: [6]}
    for token in (8, 1, 2):
        one.append(token)
    assert drafter.draft({one: 1}) == {one: [8]}


def test_without_an_idea_there_is_no_draft():
    drafter = NGramDrafter()
    assert drafter.draft({request([1, 2, 3]): 4, request([1]): 4}) == {}


def test_a_draft_never_goes_beyond_the_answer():
    speculation = Speculation(NGramDrafter(), max_draft_tokens=8, max_rows=64)
    one = request([1, 2, 1, 2], left=2)
    assert [len(draft) for draft in speculation.draft([one]).values()] == [1]
    assert speculation.draft([request([1, 2, 1, 2], left=1)]) == {}


def test_accepted_drafts_grow_and_rejected_ones_pause():
    speculation = Speculation(NGramDrafter(), max_draft_tokens=8, max_rows=64)
    one = request([1, 2] * 20)
    lengths = []
    for _ in range(4):
        (draft,) = speculation.draft([one]).values()
        lengths.append(len(draft))
        speculation.record_acceptance(one, len(draft), len(draft))
    assert lengths == [2, 4, 6, 8]
    for _ in range(4):
        found = speculation.draft([one])
        if not found:
            break
        speculation.record_acceptance(one, len(found[one]), 0)
    assert [bool(speculation.draft([one])) for _ in range(RETRY_AFTER_STEPS)].count(True) == 1


def test_steps_stay_within_the_rows_that_are_allowed():
    speculation = Speculation(NGramDrafter(), max_draft_tokens=8, max_rows=5)
    requests = [request([1, 2] * 6) for _ in range(4)]
    assert sum(len(draft) for draft in speculation.draft(requests).values()) == 1


def test_it_rests_where_longer_steps_cost_more_than_they_bring():
    speculation = Speculation(NGramDrafter(), max_draft_tokens=8, max_rows=64)
    one = request([1, 2] * 6)
    speculation.record_step_time(1, 0.010)
    speculation.record_step_time(3, 0.011)
    assert speculation.draft([one])
    for _ in range(60):
        speculation.record_step_time(3, 0.040)
    assert not speculation.draft([one])


def test_an_ended_request_is_forgotten():
    speculation = Speculation(NGramDrafter(), max_draft_tokens=8, max_rows=64)
    one = request([1, 2] * 6)
    speculation.draft([one])
    speculation.forget(one)
    assert not speculation._lengths
    assert not speculation.drafter._indices
