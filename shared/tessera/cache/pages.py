"""The page allocator: a fixed number of pages, each free or held by one or more owners.

Pages of one sequence lie one behind another where they can. A GPU does not care; a processor that reads them in order
reads twice as fast, because it foresees what comes. So whoever takes pages may say behind which, and how many more will
be wanted: room for these is left by others as long as there is other room.

Does not know what is in a page, nor who owns it: a prefix cache and a request are both just references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt


class PageAllocator:
    """Hands out pages of a pool and counts references to them.

    Ask first (`can_allocate`), then act (`allocate`): policies can be tested without side effects.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one slot, not {pages} of {page_size}")
        self.pages = pages
        self.page_size = page_size
        self.free = pages
        """Pages that nobody holds."""
        self._is_free_P = np.ones(pages, bool)
        self._references = [0] * pages
        self._rooms: dict[int, int] = {}
        """By the last page of a run: the end (exclusive) of what is left free behind it for its owner."""

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - self.free

    @property
    def longest_free_run(self) -> int:
        """Most pages one behind another that nobody holds, and that are not left free for anybody."""
        return int(_runs(self._unpromised_P())[1].max(initial=0))

    def pages_for(self, tokens: int) -> int:
        """How many pages `tokens` positions need."""
        return -(-tokens // self.page_size)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed. No side effect."""
        return count <= self.free

    def can_extend(self, after: int, count: int) -> bool:
        """Whether the `count` pages behind a page are free. No side effect."""
        return bool(self._is_free_P[after + 1 : after + 1 + count].sum() == count)

    def allocate(self, count: int, after: int | None = None, room: int = 0) -> list[int]:
        """Take `count` free pages, each with one reference. Ask `can_allocate` first.

        Args:
            count: how many.
            after: a page that they should follow.
            room: how many more are likely to be wanted behind them. None of these is taken.
        """
        assert self.can_allocate(count), f"{count} pages asked for, {self.free} free"
        taken: list[int] = []
        if after is not None and count:
            self._rooms.pop(after, None)
            page = after + 1
            while len(taken) < count and page < self.pages and self._is_free_P[page]:
                taken.append(page)
                page += 1
        if len(taken) < count:
            self._is_free_P[taken] = False
            taken += self._placed(count - len(taken), room)
        for page in taken:
            self._references[page] = 1
        self._is_free_P[taken] = False
        self.free -= len(taken)
        if taken and room:
            self._leave_room(taken[-1], room)
        return taken

    def _leave_room(self, last: int, room: int) -> None:
        end = last + 1
        while end <= last + room and end < self.pages and self._is_free_P[end]:
            end += 1
        if end > last + 1:
            self._rooms[last] = end

    def _placed(self, count: int, room: int) -> list[int]:
        """Free pages in runs as long as may be: of those with room behind them the shortest, else the longest."""
        starts, lengths = _runs(self._unpromised_P())
        roomy = np.flatnonzero(lengths >= count + room)
        if len(roomy):
            start = int(starts[roomy[lengths[roomy].argmin()]])
            return list(range(start, start + count))
        if not len(lengths) or lengths.max() < count:
            # What is left free for others does not stay so for ever.
            starts, lengths = _runs(self._is_free_P)
        found: list[int] = []
        for run in np.argsort(-lengths, kind="stable"):
            start = int(starts[run])
            found += range(start, start + min(int(lengths[run]), count - len(found)))
            if len(found) == count:
                break
        return found

    def _unpromised_P(self) -> npt.NDArray[np.bool_]:  # noqa: N802 (P: pages)
        free_P = self._is_free_P.copy()
        for last, end in self._rooms.items():
            free_P[last + 1 : end] = False
        return free_P

    def retain(self, pages: list[int]) -> None:
        """Add a reference to each of `pages`, which must be held already."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def reference_count(self, page: int) -> int:
        """How many hold `page`."""
        return self._references[page]

    def release(self, pages: list[int]) -> None:
        """Drop a reference to each of `pages`; those without any become free. No room is left behind them any more."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released but free"
            self._references[page] -= 1
            self._rooms.pop(page, None)
            if self._references[page] == 0:
                self._is_free_P[page] = True
                self.free += 1

    def reset(self, held: Iterable[Sequence[int]]) -> None:
        """Count again from nothing: each page has as many references as it is in `held`."""
        self._references = [0] * self.pages
        for pages in held:
            for page in pages:
                self._references[page] += 1
        self._is_free_P = np.array(self._references) == 0
        self.free = int(np.count_nonzero(self._is_free_P))
        self._rooms.clear()

    def check_integrity(self, held: Mapping[int, int] | None = None) -> None:
        """Every page is either free or referenced. Cheap enough to run whenever the engine is idle.

        Args:
            held: how often each page is held, by all owners together, if that is known.

        Raises:
            AssertionError: a fault of ours, with the pages concerned.
        """
        wrong = np.flatnonzero((np.array(self._references) == 0) != self._is_free_P)
        assert not len(wrong), f"pages neither free nor held, or both: {wrong.tolist()}"
        free = np.count_nonzero(self._is_free_P)
        assert free == self.free, f"{self.free} pages counted as free, {free} are"
        lost = [page for page, count in enumerate(self._references) if held is not None and count != held.get(page, 0)]
        assert not lost, f"pages with wrong counts of references: {lost}"


def _runs(is_free_P: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where pages are free one behind another: where these runs begin, and how long they are."""
    edges = np.flatnonzero(np.diff(is_free_P, prepend=False, append=False))
    return edges[::2], edges[1::2] - edges[::2]
