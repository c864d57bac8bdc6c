"""The prefix cache against a memory that really holds tokens: whatever it says a page has, the page has."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessera.cache.pages import PageAllocator
from tessera.cache.prefix import PrefixCache
from tessera.cache.radix import TreeCursor
from tessera.cache.transfers import Copy, Fetch, Offload

SIZE = 4


@dataclass(eq=False)
class Holder:
    """What a request is to the cache."""

    salt: str
    ids: list[int]
    pages: list[int] = field(default_factory=list)
    cursor: TreeCursor | None = None
    computed: int = 0


class Machine:
    """A device whose pages hold the tokens that were written to them, and the requests on it."""

    def __init__(self, pages: int = 8, host: int = 0, enabled: bool = True) -> None:
        self.cache = PrefixCache(PageAllocator(pages, SIZE), host_slots=host, enabled=enabled)
        self.device = [[-1] * SIZE for _ in range(pages)]
        self.host = [[-1] * SIZE for _ in range(host)]
        self.holders: list[Holder] = []

    def move(self) -> None:
        for transfer in self.cache.take_transfers():
            if isinstance(transfer, Copy):
                self.device[transfer.target] = list(self.device[transfer.source])
            elif isinstance(transfer, Offload):
                self.host[transfer.slot] = list(self.device[transfer.page])
            else:
                assert isinstance(transfer, Fetch)
                self.device[transfer.page] = list(self.host[transfer.slot])

    def begin(self, ids: list[int], salt: str = "") -> Holder | None:
        """Admit a request and compute all of it, as the scheduler does; None when there is no room."""
        match = self.cache.match(ids, salt, len(ids) - 1)
        total = self.cache.allocator.pages_for(len(ids))
        needed = total - len(match.nodes) + match.offloaded_pages
        if needed > self.cache.available - self.cache.idle_pages(match):
            return None
        holder = Holder(salt, list(ids))
        holder.pages, holder.cursor = self.cache.acquire(match, salt, len(ids) - 1)
        known = len(match.nodes) * SIZE + match.partial_count
        holder.pages += self.cache.allocate(total - len(holder.pages))
        self.move()
        found = [self.device[holder.pages[at // SIZE]][at % SIZE] for at in range(known)]
        assert found == ids[:known], "a page does not hold what the tree says"
        self.holders.append(holder)
        self.compute(holder)
        return holder

    def compute(self, holder: Holder) -> None:
        for at in range(holder.computed, len(holder.ids)):
            self.device[holder.pages[at // SIZE]][at % SIZE] = holder.ids[at]
        holder.computed = len(holder.ids)
        self.cache.insert(holder.cursor, holder.ids, holder.pages, holder.computed, with_partial=True)

    def grow(self, holder: Holder, token: int) -> bool:
        needed = self.cache.allocator.pages_for(len(holder.ids) + 1) - len(holder.pages)
        if needed > self.cache.available:
            return False
        holder.pages += self.cache.allocate(needed)
        self.move()
        holder.ids.append(token)
        self.compute(holder)
        return True

    def end(self, holder: Holder) -> None:
        self.holders.remove(holder)
        self.cache.release(holder.pages)

    def check(self) -> None:
        self.cache.check_integrity([holder.pages for holder in self.holders])
        for holder in self.holders:
            found = [self.device[holder.pages[at // SIZE]][at % SIZE] for at in range(holder.computed)]
            assert found == holder.ids, "somebody wrote over a page that is held"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.lists(st.integers(0, 2), min_size=1, max_size=18), st.sampled_from(["", "b"])),
        st.tuples(st.just("again"), st.integers(0, 99), st.lists(st.integers(0, 2), max_size=6)),
        st.tuples(st.just("grow"), st.integers(0, 99), st.integers(0, 2)),
        st.tuples(st.just("end"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("pin"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("unpin"), st.integers(0, 99), st.just(0)),
    ),
    max_size=60,
)


@example(
    operations=[
        ("begin", [0], ""),
        ("end", 0, 0),
        ("again", 0, [1, 0, 1]),
        ("again", 0, [1, 0, 1]),
        ("clear", 0, 0),
        ("grow", 0, 0),
    ],
    pages=5,
    host=0,
)
@settings(max_examples=400, deadline=None)
@given(operations=operations, pages=st.integers(5, 14), host=st.integers(0, 6))
def test_pages_hold_what_the_tree_says_whatever_happens(operations, pages, host):
    machine = Machine(pages, host)
    pinned = []
    history = [[0]]
    for kind, first, second in operations:
        if kind == "begin":
            machine.begin(first, second)
            history.append(first)
        elif kind == "again":
            machine.begin(history[first % len(history)] + second)
        elif kind == "grow" and machine.holders:
            machine.grow(machine.holders[first % len(machine.holders)], second)
        elif kind == "end" and machine.holders:
            machine.end(machine.holders[first % len(machine.holders)])
        elif kind == "pin" and len(pinned) < 2:
            ids = history[first % len(history)]
            nodes = machine.cache.match(ids, "", len(ids)).nodes
            machine.cache.pin(nodes)
            pinned.append(nodes)
        elif kind == "unpin" and pinned:
            machine.cache.unpin(pinned.pop(first % len(pinned)))
        elif kind == "clear" and not pinned:
            machine.cache.clear([holder.pages for holder in machine.holders])
            for holder in machine.holders:
                holder.cursor = machine.cache.root_cursor(holder.salt)
        machine.check()
    for nodes in pinned:
        machine.cache.unpin(nodes)
    for holder in list(machine.holders):
        machine.end(holder)
    machine.check()
    assert machine.cache.available == pages
    machine.move()
    machine.cache.release(machine.cache.allocate(pages))  # all of it can be reclaimed
    machine.check()


def test_a_prefix_is_found_by_whole_pages_and_the_rest_is_copied():
    machine = Machine()
    first = machine.begin([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert first is not None
    match = machine.cache.match([1, 2, 3, 4, 5, 6, 0, 0], "", 7)
    assert len(match.nodes) == 1
    assert match.partial_count == 2
    second = machine.begin([1, 2, 3, 4, 5, 6, 0, 0])
    assert second is not None
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    machine.check()
    assert machine.cache.hit_tokens == {"device": 6, "host": 0}


def test_the_last_position_is_always_computed():
    machine = Machine()
    machine.begin([1, 2, 3, 4])
    match = machine.cache.match([1, 2, 3, 4], "", 3)
    assert (len(match.nodes), match.partial_count) == (0, 3)


def test_a_salt_has_a_tree_of_its_own():
    machine = Machine()
    machine.begin([1, 2, 3, 4, 5], "alice")
    assert machine.cache.match([1, 2, 3, 4, 5], "bob", 5).nodes == []
    assert machine.cache.match([1, 2, 3, 4, 5], "", 5).nodes == []
    assert len(machine.cache.match([1, 2, 3, 4, 5], "alice", 5).nodes) == 1


def test_salts_that_nothing_is_kept_of_are_forgotten():
    machine = Machine(pages=4)
    for index in range(20):
        machine.end(machine.begin([1] * 16, f"tenant-{index}"))
    machine.cache.prune()
    assert len(machine.cache._roots) == 1
    machine.check()


def test_what_was_used_least_recently_goes_first():
    machine = Machine(pages=4)
    for token in (1, 2, 3):
        machine.end(machine.begin([token] * 4))
    machine.end(machine.begin([1, 1, 1, 1, 5]))  # page one again, and a page of its own
    machine.end(machine.begin([7] * 4))
    assert machine.cache.match([2] * 4, "", 4).nodes == []
    assert len(machine.cache.match([1] * 4, "", 4).nodes) == 1
    machine.check()


def test_what_leaves_the_device_comes_back_from_the_host():
    machine = Machine(pages=4, host=8)
    machine.end(machine.begin(list(range(12))))
    machine.end(machine.begin(list(range(100, 116))))
    assert machine.cache.host.used == 3
    assert machine.begin([*range(12), 50]) is not None
    machine.check()
    assert machine.cache.hit_tokens["host"] == 12


def test_what_is_pinned_stays():
    machine = Machine(pages=4)
    machine.end(machine.begin([1] * 4))
    machine.cache.pin(machine.cache.match([1] * 4, "", 4).nodes)
    assert machine.begin(list(range(16))) is None
    machine.end(machine.begin(list(range(12))))
    assert len(machine.cache.match([1] * 4, "", 4).nodes) == 1
    machine.check()


def test_pages_that_come_back_from_the_host_do_not_count_as_unpinned():
    machine = Machine(pages=4, host=8)
    machine.end(machine.begin(list(range(12))))
    machine.end(machine.begin(list(range(100, 116))))
    machine.end(machine.begin([*range(12), 50]))
    assert machine.cache.pinned == 0
    nodes = machine.cache.match(list(range(12)), "", 12).nodes
    machine.cache.pin(nodes)
    assert machine.cache.pinned == 3
    machine.cache.unpin(nodes)
    assert machine.cache.pinned == 0
    machine.check()


def test_a_pinned_page_below_an_invalid_one_is_removed_with_it():
    machine = Machine()
    first = machine.begin(list(range(6)))
    second = machine.begin([*range(4), 9, 9, 9, 9, 9])
    nodes = machine.cache.match(second.ids, "", 8).nodes
    machine.cache.pin(nodes)
    machine.end(second)
    machine.cache.invalidate(first.cursor, 0)
    assert machine.cache.pinned == 0
    machine.cache.unpin(nodes)
    machine.check()


def test_two_who_computed_the_same_share_it_afterwards():
    machine = Machine()
    cache = machine.cache
    both = []
    for _ in range(2):
        holder = Holder("", [1, 2, 3, 4, 5])
        holder.pages, holder.cursor = cache.allocate(2), cache.root_cursor()
        machine.holders.append(holder)
        both.append(holder)
    for holder in both:
        machine.compute(holder)
    assert both[0].pages[0] == both[1].pages[0]
    machine.check()


def test_when_it_is_off_nothing_is_kept():
    machine = Machine(enabled=False)
    machine.end(machine.begin([1, 2, 3, 4, 5]))
    assert machine.cache.match([1, 2, 3, 4, 5], "", 5).nodes == []
    assert machine.cache.allocator.free == 8
    machine.check()


def test_a_violated_invariant_is_found():
    machine = Machine()
    machine.begin([1, 2, 3, 4, 5])
    machine.cache.idle += 1
    with pytest.raises(AssertionError, match="counted as idle"):
        machine.check()
