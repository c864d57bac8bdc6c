"""Threads that run one compiled function together, each with its number.

They wait asleep between calls and are there until the process ends. One call at a time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

CACHE_LINE = 8
"""int64 numbers in one, so that two counters do not disturb each other."""
_Done = queue.SimpleQueue[BaseException | None]
_Inbox = queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], _Done]]


class Team:
    """The calling thread and as many others as a call asks for."""

    def __init__(self) -> None:
        self._inboxes: list[_Inbox] = []
        self._shared = np.zeros(3 * CACHE_LINE, np.int64)
        # At a line's beginning: NumPy's memory may begin anywhere.
        skipped = -(self._shared.ctypes.data // 8) % CACHE_LINE
        self._shared = self._shared[skipped : skipped + 2 * CACHE_LINE]

    def run(self, function: Callable[..., None], threads: int, *arguments: Any) -> None:
        """Call `function(number, threads, shared, *arguments)` on each thread, and wait for all.

        Args:
            function: releases the interpreter lock. `shared` is zeroed memory to meet at, int64 [2 cache lines].
            threads: how many.
            arguments: for each the same.
        """
        while len(self._inboxes) < threads - 1:
            self._start()
        others = self._inboxes[: threads - 1]
        # Of this call alone: one that is interrupted leaves nothing that a later one would take for its own.
        done: _Done = queue.SimpleQueue()
        for number, inbox in enumerate(others, start=1):
            inbox.put((function, (number, threads, self._shared, *arguments), done))
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
            except BaseException as raised:  # noqa: BLE001 (it is raised where the team was called)
                error = raised
            del arguments
            done.put(error)
