"""The page allocator: a fixed number of pages, each free or held by one or more owners.

Does not know what is in a page, nor who owns it: a prefix cache and a request are both just references.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PageAllocator:
    """Hands out pages of a pool and counts references to them.

    Ask first (`can_allocate`), then act (`allocate`): policies can be tested without side effects.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool needs at least one page of one slot, not {pages} of {page_size}")
        self.pages = pages
        self.page_size = page_size
        self._free = list(range(pages - 1, -1, -1))
        self._references = [0] * pages

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.pages - len(self._free)

    def pages_for(self, tokens: int) -> int:
        """How many pages `tokens` positions need."""
        return -(-tokens // self.page_size)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed. No side effect."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages, each with one reference. Ask `can_allocate` first."""
        assert self.can_allocate(count), f"{count} pages asked for, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: list[int]) -> None:
        """Add a reference to each of `pages`, which must be held already."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def references(self, page: int) -> int:
        """How many hold `page`."""
        return self._references[page]

    def release(self, pages: list[int]) -> None:
        """Drop a reference to each of `pages`; those without any become free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released but free"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def reset(self, held: Iterable[Sequence[int]]) -> None:
        """Count again from nothing: each page has as many references as it is in `held`."""
        self._references = [0] * self.pages
        for pages in held:
            for page in pages:
                self._references[page] += 1
        self._free = [page for page in range(self.pages - 1, -1, -1) if self._references[page] == 0]

    def check_integrity(self) -> None:
        """Every page is either free once or referenced. Cheap enough to run whenever the engine is idle.

        Raises:
            AssertionError: a fault of ours, with the pages concerned.
        """
        free = set(self._free)
        assert len(free) == len(self._free), f"pages free twice: {sorted(self._free)}"
        wrong = [page for page in range(self.pages) if (self._references[page] == 0) != (page in free)]
        assert not wrong, f"pages neither free nor held, or both: {wrong}"
