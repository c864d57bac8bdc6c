"""Watches the disk of the embedded Redis: reads go on when it is full.

Before the disk is full, Redis is told not to end itself when it cannot write; when there is space again, to write every
change before it answers, as it was started. Does not know jobs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tessera.suite import embedded_redis, host
from tessera.suite.child import Announce

LOOK_EVERY_S = 2.0
"""Seconds between two looks at the disk."""


async def watch_disk(data_dir: Path, announce: Announce) -> None:
    """Keep Redis' way of writing in step with the space on its disk, until this task is cancelled."""
    path = embedded_redis.socket_path(data_dir)
    low = False
    while True:
        free = host.disk_free(data_dir)
        now_low = free < embedded_redis.LEAST_FREE_BYTES
        # Redis may have been started again meanwhile, as its disk was then: a change is told until it has taken it.
        if now_low != low and await embedded_redis.configure(path, "appendfsync", "everysec" if now_low else "always"):
            low = now_low
            if low:
                announce("redis", f"the disk of {data_dir} is nearly full ({free >> 20} MiB): free some space")
            else:
                announce("redis", f"the disk of {data_dir} has space again")
        await asyncio.sleep(LOOK_EVERY_S)
