"""One process of the suite: started with its log, started again when it dies, stopped in bounded time.

Does not know what the process does, nor when it is ready: whoever knows says so by `was_ready`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tessera.processes import die_with_parent
from tessera.suite.parts import SuitePart

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STABLE_S = 60.0
GIVE_UP_AFTER = 3
"""So many deaths in a row of a part that never was ready, and it is failed for good."""
LOG_LIMIT = 10 * 1024 * 1024

Announce = Callable[[str, str], None]
"""Told a part's name and what happened to it."""


class Child:
    """A part's process, and its successors.

    Args:
        part: what to run.
        environment: of the process.
        log: file that its output is appended to.
        announce: told when it dies, is started again, or is given up.
        inherits: descriptors that the process gets too, and so keeps open.
    """

    def __init__(
        self,
        part: SuitePart,
        environment: Mapping[str, str],
        log: Path,
        announce: Announce,
        inherits: Sequence[int] = (),
    ) -> None:
        self.part = part
        self.environment = dict(environment)
        self.log = log
        self.announce = announce
        self.inherits = tuple(inherits)
        self.state: Literal["running", "restarting", "failed", "stopped"] = "stopped"
        self.restarts = 0
        self.was_ready = False
        self.changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    def start(self) -> None:
        """Start it and keep it running. Call from the main thread: it dies with the thread that starts it."""
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.part.name}")

    def let_go(self) -> None:
        """Do not start it again when it ends."""
        if self._keeper is not None:
            self._keeper.cancel()

    async def stop(self) -> bool:
        """SIGTERM, after the part's `stop_s` SIGKILL to all that it started. Returns whether it ended by itself."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        process = self._process
        willing = True
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), self.part.stop_s)
                except TimeoutError:
                    willing = False
            self.kill()
            await process.wait()
        self.state = "stopped"
        return willing

    def kill(self) -> None:
        """SIGKILL to the process and all that it started, without waiting."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_words(self, lines: int = 3) -> list[str]:
        """The end of its log: why it failed, if it said so."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 8192))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-lines:]

    async def _keep(self) -> None:
        quick_deaths = 0
        backoff = FIRST_BACKOFF_S
        while True:
            started = time.monotonic()
            try:
                status = await self._run_once()
            except OSError as error:
                self._enter("failed")
                self.announce(self.part.name, f"cannot be started: {error}")
                return
            lived = time.monotonic() - started
            quick_deaths = 0 if self.was_ready else quick_deaths + 1
            if quick_deaths >= GIVE_UP_AFTER:
                self._enter("failed")
                self.announce(self.part.name, f"failed: {ending(status)} {quick_deaths} times; its log is {self.log}")
                return
            backoff = FIRST_BACKOFF_S if lived > STABLE_S else min(backoff * 2, MAX_BACKOFF_S)
            self._enter("restarting")
            self.announce(self.part.name, f"{ending(status)}; starting it again in {backoff:.0f} s")
            await asyncio.sleep(backoff)
            self.restarts += 1

    async def _run_once(self) -> int:
        rotate(self.log)
        with self.log.open("ab") as output:
            spawning = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *self.part.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.environment,
                    start_new_session=True,
                    pass_fds=self.inherits,
                    preexec_fn=die_with_parent(self.part.death_signal),
                )
            )
            try:
                self._process = await asyncio.shield(spawning)
            except asyncio.CancelledError:
                self._process = await spawning
                raise
        self._enter("running")
        status = await self._process.wait()
        self.kill()
        return status

    def _enter(self, state: Literal["running", "restarting", "failed"]) -> None:
        self.state = state
        self.changed.set()


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def rotate(log: Path) -> None:
    """Put a log that has grown over the limit aside, as `<name>.1`; one old log is kept."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_name(log.name + ".1"))
