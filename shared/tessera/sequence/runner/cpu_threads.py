"""Chooses how many CPU threads a step uses: all of them, or fewer while other processes need the cores.

A parallel loop ends when its slowest thread does. When another busy process holds one of the cores, the thread on that
core waits for its time slice in every one of a step's hundred or so loops, and two threads become ten times slower than
one. Such a step is called stalled: its threads got far less CPU time than wall time × threads. After several stalled
steps in a row the next steps run on fewer threads for a while, then all threads are tried again. A single stalled step
changes nothing: the machine was busy for a moment. Torch-free; does not know what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STALLED_CPU_SHARE = 0.6
"""A step is stalled when its threads spent a smaller share of their wall time than this on a CPU. Measured on two
cores: 0.9 to 1.0 for a step alone, 0.3 to 0.5 beside one busy process."""
MIN_STEP_S = 0.005
"""Shortest step, in seconds, that is judged: the clock of CPU time is too coarse for shorter ones."""
STALLS_BEFORE_FEWER = 3
"""Number of stalled steps in a row after which fewer threads are used."""
FIRST_PAUSE_S = 1.0
"""Seconds with fewer threads before all are tried again, the first time. Each further time takes twice as long."""
MAX_PAUSE_S = 30.0
"""Most seconds with fewer threads before all are tried again."""


class ThreadShare:
    """Chooses the number of threads step by step.

    Args:
        max_threads: number of threads while no other process needs the cores.
        set_threads: sets the number of threads of the steps that follow.
        wall: clock of wall time in seconds.
        cpu: clock of the process's CPU time in seconds, summed over its threads.

    Attributes:
        threads: number of threads that steps use now.
        stalls: number of stalled steps since the start.
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
        """Context around one step. `spared` of its threads have no work in this step."""
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
