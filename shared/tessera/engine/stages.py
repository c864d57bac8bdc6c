"""Where the time of steps goes: seconds by stage, for metrics. Does not know what a stage does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class StageTimer:
    """Adds up seconds.

    Args:
        names: of the stages, so that each has a value from the beginning.
    """

    def __init__(self, *names: str) -> None:
        self.seconds = dict.fromkeys(names, 0.0)
        self.last = dict.fromkeys(names, 0.0)
        """Of the last time each was measured."""

    @contextlib.contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Count what happens inside as a stage's."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.last[name] = time.perf_counter() - began
            self.seconds[name] += self.last[name]

    def metrics(self) -> dict[str, float]:
        """`step_<stage>_seconds_total` since the start."""
        return {f"step_{name}_seconds_total": seconds for name, seconds in self.seconds.items()}
