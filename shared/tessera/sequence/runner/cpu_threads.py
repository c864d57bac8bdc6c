"""How many CPU threads a step uses: all that were given, fewer while other processes want the cores.

A parallel loop waits at its end for the slowest thread. When another busy process holds one of the cores, that thread
waits for its turn at every one of some hundred loops of a step, and two threads become ten times slower than one. A
step whose threads got far less CPU time than wall time × threads was such a step. After some in a row the next ones run
on fewer threads for a while, then all are tried again; a single one is a machine that did something else for a moment.
Torch-free; does not know what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STALLED_CPU_SHARE = 0.6
"""Share of its threads' time that a step must have spent on a CPU. Measured alone on two cores: 0.9 to 1.0; beside
one busy process: 0.3 to 0.5."""
MIN_STEP_S = 0.005
"""Shorter steps say nothing: the clock of CPU time is coarse."""
STALLS_BEFORE_FEWER = 3
"""Stalled steps in a row after which fewer threads are used."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class ThreadShare:
    """Chooses the number of threads step by step.

    Args:
        max_threads: threads when nobody else wants the cores.
        set_threads: makes it so for what comes.
        wall, cpu: clocks in seconds; the process's own when not given.
    """

    def __init__(
        self,
        max_threads: int,
        set_threads: Callable[[int], None],
        *,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.max_threads = max_threads
        self.threads = max_threads
        self.stalls = 0
        self._set_threads = set_threads
        self._wall = wall
        self._cpu = cpu
        self._in_a_row = 0
        self._pause_s = FIRST_PAUSE_S
        self._again_at = 0.0

    @contextmanager
    def step(self, spared: int = 0) -> Iterator[None]:
        """Around one step, which leaves `spared` of its threads without work."""
        if self.threads < self.max_threads and self._wall() >= self._again_at:
            self._use(self.max_threads)
        wall, cpu = self._wall(), self._cpu()
        yield
        now = self._wall()
        wall, cpu = now - wall, self._cpu() - cpu
        used = self.threads - spared
        if used <= 1 or wall < MIN_STEP_S:
            return
        if cpu >= STALLED_CPU_SHARE * wall * used:
            self._in_a_row = 0
            if self.threads == self.max_threads:
                self._pause_s = FIRST_PAUSE_S
            return
        self.stalls += 1
        self._in_a_row += 1
        if self._in_a_row < STALLS_BEFORE_FEWER:
            return
        self._in_a_row = 0
        if self.threads == self.max_threads:
            self._again_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        self._use(max(1, self.threads // 2))

    def _use(self, threads: int) -> None:
        self.threads = threads
        self._set_threads(threads)
