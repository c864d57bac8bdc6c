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

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        if self.allocator.can_allocate(count):
            self.held.append(self.allocator.allocate(count))
        else:
            assert count > self.allocator.free

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.allocator.share(pages)
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
            assert self.allocator.references(page) == sum(pages.count(page) for pages in self.held)
        assert self.allocator.used == len({page for pages in self.held for page in pages})


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_pages_for_rounds_up():
    allocator = PageAllocator(4, 16)
    assert [allocator.pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_pool_without_pages_is_refused():
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0, 16)
