"""The intake: requests wait in one place, their state says for what, and each state has its own limit and order."""

from __future__ import annotations

import pytest

from tessera.engine.waits import WaitMeter
from tessera.errors import OverloadedError
from tessera.sequence.intake import Intake
from tessera.sequence.request import RequestState, SequenceRequest
from tessera.wire.engine import Sampling

GRAMMAR, ENCODER, WAITING = RequestState.AWAITING_GRAMMAR, RequestState.AWAITING_ENCODER, RequestState.WAITING


def request(name: str) -> SequenceRequest:
    return SequenceRequest(name, [1, 2], Sampling(max_tokens=1))


def test_a_request_that_waits_has_the_state_that_it_waits_in_and_is_counted_once():
    intake, one = Intake(8), request("one")
    assert one.state is RequestState.NEW
    for state in (GRAMMAR, ENCODER):
        intake.hold(one, state, {})
        assert (one.state, intake.count(state), len(intake)) == (state, 1, 1)
        assert intake.take(state, "one")[0] is one
        assert len(intake) == 0
    intake.enqueue(one)
    assert (one.state, intake.count(WAITING), len(intake)) == (WAITING, 1, 1)
    assert one in intake.queue


def test_requests_leave_a_state_in_the_order_in_which_they_came_to_it():
    intake, early, late = Intake(8), request("early"), request("late")
    assert early.arrival < late.arrival
    intake.hold(late, ENCODER, {})
    intake.hold(early, ENCODER, {})  # its grammar took longer
    assert [intake.take_first(ENCODER)[0].request_id for _ in range(2)] == ["late", "early"]
    for one in (late, early):
        intake.enqueue(one)
    assert list(intake.queue) == [early, late]


@pytest.mark.parametrize(("state", "ahead"), [(GRAMMAR, 3), (ENCODER, 2), (WAITING, 1)])
def test_a_request_counts_those_in_its_state_and_nearer_to_running(state, ahead):
    intake = Intake(ahead + 1)
    intake.hold(request("grammar"), GRAMMAR, {})
    intake.hold(request("images"), ENCODER, {})
    intake.enqueue(request("waits"))
    intake.check_room(state)
    intake.max_waiting = ahead
    with pytest.raises(OverloadedError, match=f"{ahead} requests are waiting") as caught:
        intake.check_room(state)
    assert caught.value.retry_after


def test_a_cancelled_request_is_forgotten_and_its_state_is_told():
    intake, one, other = Intake(8), request("one"), request("other")
    intake.hold(one, GRAMMAR, {})
    intake.hold(other, ENCODER, {})
    assert [intake.cancel(name) for name in ("one", "other", "one", "never seen")] == [GRAMMAR, ENCODER, None, None]
    assert one.state is other.state is RequestState.ENDED
    assert len(intake) == 0


def test_a_refused_request_is_told_how_long_those_before_it_take_by_the_tokens_that_are_left():
    """Two run and four wait, each of up to 1,000 tokens, and 20 tokens a second are made: it takes 300 seconds."""
    seconds = [0.0]
    running = [SequenceRequest(f"runs {number}", [1, 2], Sampling(max_tokens=1000)) for number in range(2)]
    intake = Intake(4, running)
    intake._meter = WaitMeter(lambda: seconds[0])
    for number in range(4):
        intake.enqueue(SequenceRequest(f"waits {number}", [1, 2], Sampling(max_tokens=1000)))
    for _ in range(10):
        seconds[0] += 1
        for one in running:
            one.token_ids += [7] * 10
        with pytest.raises(OverloadedError) as caught:
            intake.check_room()
    assert caught.value.retry_after == pytest.approx((6 * 1000 - 200) / 20, rel=0.05)
    assert "290 s" in caught.value.message
