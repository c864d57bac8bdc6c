"""The page allocator: a fixed number of pages, each free or referenced by one or more owners.

Pages of one sequence are allocated one behind another where possible. A GPU does not care; a CPU that reads them in
order reads twice as fast, because its prefetcher can follow. A caller may therefore name the page to continue behind
and how many more pages it will want: that run stays reserved for it as long as other free pages exist.

Knows nothing about the content of a page or its owner: a prefix cache and a request are both references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt


class PageAllocator:
    """Allocates pages of a pool and counts references to them.

    Ask first (`can_allocate`), then act (`allocate`): policies can be tested without side effects.

    Args:
        pages: Number of pages in the pool.
        page_size: Token slots of a page.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one slot, not {pages} of {page_size}")
        self.pages = pages
        self.page_size = page_size
        self.free = pages
        """Number of pages without a reference."""
        self._is_free_P = np.ones(pages, bool)
        self._reference_counts = [0] * pages
        self._reserved_ends: dict[int, int] = {}
        """End (exclusive) of the free run that is reserved behind a sequence, by the sequence's last page."""

    @property
    def used(self) -> int:
        """Number of pages with at least one reference."""
        return self.pages - self.free

    @property
    def longest_free_run(self) -> int:
        """Length of the longest run of consecutive pages that are neither referenced nor reserved."""
        return int(_runs(self._unreserved_P())[1].max(initial=0))

    def pages_for(self, tokens: int) -> int:
        """Return how many pages `tokens` positions need."""
        return -(-tokens // self.page_size)

    def can_allocate(self, count: int) -> bool:
        """Return whether `allocate(count)` would succeed. No side effect."""
        return count <= self.free

    def can_extend(self, after: int, count: int) -> bool:
        """Return whether the `count` pages right behind page `after` are free. No side effect."""
        return bool(self._is_free_P[after + 1 : after + 1 + count].sum() == count)

    def allocate(self, count: int, after: int | None = None, reserve: int = 0) -> list[int]:
        """Take `count` free pages, each with one reference. Ask `can_allocate` first.

        Args:
            count: Number of pages to take.
            after: Page that they should follow.
            reserve: Number of pages that will probably be wanted behind them. They are reserved, not taken.
        """
        assert self.can_allocate(count), f"{count} pages requested, {self.free} free"
        taken: list[int] = []
        if after is not None and count:
            self._reserved_ends.pop(after, None)
            page = after + 1
            while len(taken) < count and page < self.pages and self._is_free_P[page]:
                taken.append(page)
                page += 1
        if len(taken) < count:
            self._is_free_P[taken] = False
            taken += self._choose_runs(count - len(taken), reserve)
        for page in taken:
            self._reference_counts[page] = 1
        self._is_free_P[taken] = False
        self.free -= len(taken)
        if taken and reserve:
            self._reserve_behind(taken[-1], reserve)
        return taken

    def _reserve_behind(self, last: int, reserve: int) -> None:
        end = last + 1
        while end <= last + reserve and end < self.pages and self._is_free_P[end]:
            end += 1
        if end > last + 1:
            self._reserved_ends[last] = end

    def _choose_runs(self, count: int, reserve: int) -> list[int]:
        """Choose `count` free pages in as few runs as possible.

        The shortest run that also holds the reserve is best. If no run holds both, the longest runs are taken, those of
        other sequences' reserves only when nothing else is long enough.
        """
        starts, lengths = _runs(self._unreserved_P())
        sufficient = np.flatnonzero(lengths >= count + reserve)
        if len(sufficient):
            start = int(starts[sufficient[lengths[sufficient].argmin()]])
            return list(range(start, start + count))
        if not len(lengths) or lengths.max() < count:
            starts, lengths = _runs(self._is_free_P)
        chosen: list[int] = []
        for run in np.argsort(-lengths, kind="stable"):
            start = int(starts[run])
            chosen += range(start, start + min(int(lengths[run]), count - len(chosen)))
            if len(chosen) == count:
                break
        return chosen

    def _unreserved_P(self) -> npt.NDArray[np.bool_]:  # noqa: N802 (P: pages)
        free_P = self._is_free_P.copy()
        for last, end in self._reserved_ends.items():
            free_P[last + 1 : end] = False
        return free_P

    def retain(self, pages: list[int]) -> None:
        """Add a reference to each of `pages`, which must have one already."""
        for page in pages:
            assert self._reference_counts[page] > 0, f"page {page} is free and cannot be retained"
            self._reference_counts[page] += 1

    def reference_count(self, page: int) -> int:
        """Return the number of references to `page`."""
        return self._reference_counts[page]

    def release(self, pages: list[int]) -> None:
        """Drop a reference to each of `pages`; those without any become free. Reserves behind them end."""
        for page in pages:
            assert self._reference_counts[page] > 0, f"page {page} is released but free"
            self._reference_counts[page] -= 1
            self._reserved_ends.pop(page, None)
            if self._reference_counts[page] == 0:
                self._is_free_P[page] = True
                self.free += 1

    def reset(self, held: Iterable[Sequence[int]]) -> None:
        """Rebuild all counts: each page gets as many references as it has occurrences in `held`."""
        self._reference_counts = [0] * self.pages
        for pages in held:
            for page in pages:
                self._reference_counts[page] += 1
        self._is_free_P = np.array(self._reference_counts) == 0
        self.free = int(np.count_nonzero(self._is_free_P))
        self._reserved_ends.clear()

    def check_integrity(self, held: Mapping[int, int] | None = None) -> None:
        """Check that every page is either free or referenced. Cheap enough to run whenever the engine is idle.

        Args:
            held: Number of references to each page by all owners together, if that is known.

        Raises:
            AssertionError: The counts disagree; names the pages. This is a bug of the cache or of an owner.
        """
        wrong = np.flatnonzero((np.array(self._reference_counts) == 0) != self._is_free_P)
        assert not len(wrong), f"pages neither free nor held, or both: {wrong.tolist()}"
        free = np.count_nonzero(self._is_free_P)
        assert free == self.free, f"{self.free} pages counted as free, {free} are"
        lost = [
            page for page, count in enumerate(self._reference_counts) if held is not None and count != held.get(page, 0)
        ]
        assert not lost, f"pages with wrong reference counts: {lost}"


def _runs(is_free_P: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the starts and the lengths of all runs of consecutive free pages."""
    edges = np.flatnonzero(np.diff(is_free_P, prepend=False, append=False))
    return edges[::2], edges[1::2] - edges[::2]
