"""Threads give way when other processes hold the cores, and come back when they are free."""

from __future__ import annotations

import itertools

import pytest

from tessera.sequence.runner.cpu_threads import FIRST_PAUSE_S, STALLS_BEFORE_FEWER, ThreadShare


class Machine:
    """Two clocks, and steps that get a share of their threads' time."""

    def __init__(self, most: int) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.set: list[int] = []
        self.share = ThreadShare(most, self.set.append, wall=lambda: self.wall, cpu=lambda: self.cpu)

    def step(self, got: float, seconds: float = 0.1, *, spared: int = 0) -> int:
        """A step whose threads get `got` of their time. Returns the threads it ran on."""
        with self.share.step(spared):
            threads = max(1, self.share.threads - spared)
            self.wall += seconds
            self.cpu += seconds * threads * got
        return threads


def test_alone_all_threads_are_used():
    machine = Machine(4)
    assert {machine.step(0.95) for _ in range(20)} == {4}
    assert machine.set == []


def test_a_step_that_leaves_threads_without_work_is_not_stalled():
    machine = Machine(2)
    assert {machine.step(0.95, spared=1) for _ in range(20)} == {1}
    assert machine.step(0.95) == 2
    assert machine.share.stalls == 0
    machine = Machine(4)
    assert machine.step(0.95, spared=1) == 3
    assert [machine.step(0.3, spared=1) for _ in range(STALLS_BEFORE_FEWER)] == [3] * STALLS_BEFORE_FEWER
    assert machine.step(1.0) == 2


def test_stalled_steps_halve_the_threads_until_they_are_not_stalled():
    machine = Machine(4)
    calm, halved = [4] * STALLS_BEFORE_FEWER, [2] * STALLS_BEFORE_FEWER
    assert [machine.step(0.3) for _ in range(2 * STALLS_BEFORE_FEWER)] == calm + halved
    assert machine.step(1.0) == 1
    assert machine.share.stalls == 2 * STALLS_BEFORE_FEWER


def test_one_that_stalls_now_and_then_changes_nothing():
    machine = Machine(2)
    assert {machine.step(0.3 if number % STALLS_BEFORE_FEWER else 0.9) for number in range(50)} == {2}
    assert machine.share.stalls > 30


def test_all_threads_are_tried_again_ever_more_rarely_while_it_does_not_pay():
    machine = Machine(2)
    used = [machine.step(0.3) for _ in range(400)]
    pauses = [0.1 * len(list(steps)) for threads, steps in itertools.groupby(used) if threads == 1][:-1]
    assert len(pauses) > 3
    assert pauses[0] == pytest.approx(FIRST_PAUSE_S, abs=0.25)
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses))


def test_when_the_cores_are_free_again_all_threads_come_back_and_stay():
    machine = Machine(2)
    for _ in range(STALLS_BEFORE_FEWER):
        machine.step(0.3)
    used = [machine.step(1.0) for _ in range(40)]
    assert used[0] == 1
    assert used[-20:] == [2] * 20


def test_steps_too_short_to_measure_change_nothing():
    machine = Machine(2)
    assert {machine.step(0.0, seconds=0.001) for _ in range(50)} == {2}
