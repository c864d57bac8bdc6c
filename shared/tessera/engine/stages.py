"""Measures how many seconds each stage of a step takes, for metrics. Does not know what a stage does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class StageTimer:
    """Sums the seconds of each stage.

    Args:
        names: of the stages, so that each has a value from the start.

    Attributes:
        seconds: sum of each stage since the start.
        last: seconds of each stage when it was measured last.
    """

    def __init__(self, *names: str) -> None:
        self.seconds = dict.fromkeys(names, 0.0)
        self.last = dict.fromkeys(names, 0.0)

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Context whose duration counts for a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.last[name] = time.perf_counter() - began
            self.seconds[name] += self.last[name]

    def metrics(self) -> dict[str, float]:
        """`step_<stage>_seconds_total`: seconds of each stage since the start."""
        return {f"step_{name}_seconds_total": seconds for name, seconds in self.seconds.items()}
