"""A refused client is told a wait that is near the real one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.engine.waits import LEAST_S, MOST_S, WaitMeter


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(2, 64), st.floats(0.05, 8.0))
def test_the_wait_of_a_full_queue_is_its_length_times_its_pace(limit: int, pace_s: float) -> None:
    clock = Clock()
    meter = WaitMeter(clock)
    for length in range(limit):
        meter.came(1, length + 1)
    for _ in range(40):
        clock.now += pace_s
        meter.came(1, limit)  # one has left, and another takes its place
    told = meter.wait(limit)
    assert told == pytest.approx(min(MOST_S, max(LEAST_S, limit * pace_s)), rel=0.05)


def test_who_waits_for_the_first_place_alone_is_told_a_share_of_that() -> None:
    clock = Clock()
    meter = WaitMeter(clock)
    for length in range(8):
        meter.came(1, length + 1)
    for _ in range(20):
        clock.now += 5.0
        meter.came(1, 8)
    assert meter.wait(8, ahead=1) == pytest.approx(5.0, rel=0.1)


def test_a_queue_that_stands_still_is_told_by_the_time_that_it_has_stood() -> None:
    clock = Clock()
    meter = WaitMeter(clock)
    meter.came(1, 1)
    assert meter.wait(1) == LEAST_S
    clock.now += 40
    assert meter.wait(1) == 40


def test_the_pace_before_a_pause_is_known_and_the_pause_is_not_part_of_it() -> None:
    clock = Clock()
    meter = WaitMeter(clock)
    for _ in range(10):
        meter.came(1, 4)
        clock.now += 2.0
        meter.wait(3)
    clock.now += 100_000
    meter.came(1, 1)
    clock.now += 0.1
    for length in range(2, 11):
        meter.came(1, length)
    assert meter.wait(10) == pytest.approx(20, rel=0.3)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5), st.integers(0, 100)), max_size=50))
def test_every_answer_is_bounded(moves: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    meter = WaitMeter(clock)
    for seconds, amount, length in moves:
        clock.now += seconds
        meter.came(amount, length)
        assert LEAST_S <= meter.wait(length) <= MOST_S
