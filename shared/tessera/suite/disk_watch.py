"""Watches the disk of the embedded Redis: reads go on when it is full.

Before the disk is full, Redis is told not to end itself when it cannot write; when there is space again, to write every
change before it answers, as it was started. Does not know jobs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tessera.jobs.disk import free_bytes
from tessera.suite import embedded_redis
from tessera.suite.child import Announce

LOOK_EVERY_S = 2.0
"""Most seconds between two looks at the disk."""
SOONEST_S = 0.1
"""Fewest seconds between two looks."""
FILL_BYTES_PER_S = 1024 * 1024 * 1024
"""How fast a disk may fill up: the next look comes before a disk that fills at this rate is full."""


async def watch_disk(data_dir: Path, announce: Announce) -> None:
    """Keep Redis' way of writing in step with the space on its disk, until this task is cancelled."""
    path = embedded_redis.socket_path(data_dir)
    low = False
    while True:
        free = free_bytes(data_dir)
        now_low = free < embedded_redis.LEAST_FREE_BYTES
        # Redis may have been started again meanwhile, as its disk was then: a change is told until it has taken it.
        if now_low != low and await embedded_redis.configure(path, "appendfsync", "everysec" if now_low else "always"):
            low = now_low
            if low:
                announce("redis", f"the disk of {data_dir} is nearly full ({free >> 20} MiB): free some space")
            else:
                announce("redis", f"the disk of {data_dir} has space again")
        await asyncio.sleep(next_look_s(free))


def next_look_s(free: int) -> float:
    """Seconds until the next look at a disk that has so many bytes free now."""
    left = free - embedded_redis.LEAST_FREE_BYTES
    if left < 0:
        return LOOK_EVERY_S  # Redis has been told; space comes back at leisure
    return min(LOOK_EVERY_S, max(SOONEST_S, left / FILL_BYTES_PER_S))
