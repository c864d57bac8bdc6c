"""The page allocator against a simple model: no page is lost, handed out twice, or freed while it is held."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tessera.cache.pages import PageAllocator


class AllocatorMachine(RuleBasedStateMachine):
    """Drives an allocator and a list of what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(12, 4)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 6), reserve=st.integers(0, 5), data=st.data())
    def allocate(self, count: int, reserve: int, data: st.DataObject) -> None:
        if not self.allocator.can_allocate(count):
            assert count > self.allocator.free
            return
        held = sorted({page for pages in self.held for page in pages})
        after = data.draw(st.sampled_from([None, *held]))
        free, can_extend = self.allocator.free, after is not None and self.allocator.can_extend(after, count)
        taken = self.allocator.allocate(count, after, reserve)
        assert len(set(taken)) == count
        assert not set(taken) & set(held)
        assert self.allocator.free == free - count
        if after is not None and can_extend:
            assert taken == list(range(after + 1, after + 1 + count))
        self.held.append(taken)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.allocator.retain(pages)
        self.held.append(list(pages))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.allocator.release(self.held.pop(index))

    @invariant()
    def counts_agree(self) -> None:
        self.allocator.check_integrity()
        for page in range(12):
            assert self.allocator.reference_count(page) == sum(pages.count(page) for pages in self.held)
        assert 0 <= self.allocator.longest_free_run <= self.allocator.free
        assert self.allocator.used == len({page for pages in self.held for page in pages})


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_pages_for_rounds_up():
    allocator = PageAllocator(4, 16)
    assert [allocator.pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_pool_without_pages_is_refused():
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0, 16)


def test_pages_of_sequences_that_grow_in_turns_lie_in_order():
    allocator = PageAllocator(12, 4)
    first, second = allocator.allocate(2, reserve=2), allocator.allocate(1, reserve=3)
    for left in (1, 0):
        first += allocator.allocate(1, after=first[-1], reserve=left)
        second += allocator.allocate(1, after=second[-1], reserve=left + 1)
    assert first == [0, 1, 2, 3]
    assert second == [4, 5, 6]
    assert allocator.allocate(1) == [8], "page 7 is left for the second one"


def test_the_shortest_place_that_is_roomy_is_taken():
    allocator = PageAllocator(12, 4)
    pages = allocator.allocate(12)
    allocator.release([pages[number] for number in (1, 3, 4, 5, 7, 8, 9, 10, 11)])
    assert allocator.allocate(1) == [1]
    assert allocator.allocate(2, reserve=1) == [3, 4]
    assert allocator.allocate(3, reserve=4) == [7, 8, 9], "nowhere is there so much room: the longest"


def test_room_that_was_left_is_taken_when_there_is_no_other():
    allocator = PageAllocator(4, 4)
    first = allocator.allocate(1, reserve=3)
    assert allocator.longest_free_run == 0
    assert allocator.allocate(2) == [1, 2]
    assert allocator.allocate(1, after=first[0]) == [3]


def test_nothing_is_left_free_behind_who_has_gone():
    allocator = PageAllocator(4, 4)
    pages = allocator.allocate(2, reserve=2)
    allocator.release(pages)
    assert allocator.longest_free_run == 4


def test_pages_that_lie_apart_come_in_the_longest_runs_there_are():
    allocator = PageAllocator(9, 4)
    pages = allocator.allocate(9)
    allocator.release([pages[number] for number in (0, 2, 3, 5, 6, 7)])
    assert allocator.allocate(5) == [5, 6, 7, 2, 3]
