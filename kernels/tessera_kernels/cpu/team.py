"""A team of threads that run one compiled function together, each with its own index.

Threads sleep between calls and live until the process ends. A team runs one call at a time. Knows nothing about what
the function computes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

CACHE_LINE_INT64 = 8
"""int64 elements of a cache line of 64 bytes. Each counter has a line of its own, which avoids false sharing."""
_Done = queue.SimpleQueue[BaseException | None]
_Inbox = queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], _Done]]


class Team:
    """The calling thread, which has index 0, and as many others as a call asks for."""

    def __init__(self) -> None:
        self._inboxes: list[_Inbox] = []
        self._shared = np.zeros(3 * CACHE_LINE_INT64, np.int64)
        # Align to a cache line: NumPy's memory may begin anywhere.
        skipped = -(self._shared.ctypes.data // 8) % CACHE_LINE_INT64
        self._shared = self._shared[skipped : skipped + 2 * CACHE_LINE_INT64]

    def run(self, function: Callable[..., None], threads: int, *arguments: Any) -> None:
        """Call `function(thread, threads, shared, *arguments)` on each thread, and wait for all.

        Args:
            function: must release the interpreter lock. `thread` is the thread's index, 0 … threads - 1; `shared` is
                int64 memory of two aligned cache lines for barriers, zero at the team's first call.
            threads: how many threads run it, the calling one included.
            arguments: the same for each thread.

        Raises:
            BaseException: the first error that the function raised on any thread.
        """
        while len(self._inboxes) < threads - 1:
            self._start()
        others = self._inboxes[: threads - 1]
        # A queue for this call alone: an interrupted call leaves nothing that a later one would take for its own.
        done: _Done = queue.SimpleQueue()
        for thread, inbox in enumerate(others, start=1):
            inbox.put((function, (thread, threads, self._shared, *arguments), done))
        try:
            function(0, threads, self._shared, *arguments)
        finally:
            errors = [error for error in [done.get() for _ in others] if error is not None]
        if errors:
            raise errors[0]

    def _start(self) -> None:
        inbox: _Inbox = queue.SimpleQueue()
        self._inboxes.append(inbox)
        threading.Thread(target=self._work, args=(inbox,), daemon=True, name=f"team-{len(self._inboxes)}").start()

    def _work(self, inbox: _Inbox) -> None:
        while True:
            function, arguments, done = inbox.get()
            error: BaseException | None = None
            try:
                function(*arguments)
            except BaseException as raised:  # noqa: BLE001 (`run` raises it on the calling thread)
                error = raised
            del arguments
            done.put(error)
