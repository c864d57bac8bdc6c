"""Keeps one process of the suite running: starts it with its log, restarts it when it dies, stops it in bounded time.

Knows neither what the process does nor when it is ready: `tessera.suite.watch` sets `was_ready`.
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
"""Seconds before the first restart; each further one waits twice as long."""
MAX_BACKOFF_S = 30.0
"""Longest wait before a restart, in seconds."""
STABLE_S = 60.0
"""Seconds that a process must have lived for the waits to begin anew."""
GIVE_UP_AFTER = 3
"""Deaths in a row, of a part that was never ready, after which the part fails for good."""
LOG_LIMIT = 10 * 1024 * 1024
"""Bytes of a log above which it is rotated before the next start."""

Announce = Callable[[str, str], None]
"""Called with a part's name and what happened to the part."""


class Child:
    """The process of a part, and the processes that replace it when it dies.

    Args:
        part: the part to run.
        environment: environment of the process.
        log: file to which the output of the process is appended.
        announce: called when the process dies, is restarted, or is given up.
        inherits: file descriptors that the process inherits, and so keeps open.
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
        self._restarting: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    def start(self) -> None:
        """Start the process and keep it running. Call this from the main thread: the process dies with its thread."""
        self._restarting = asyncio.create_task(self._keep(), name=f"keep {self.part.name}")

    def stop_restarting(self) -> None:
        """Stop restarting the process when it ends; a process that runs goes on."""
        if self._restarting is not None:
            self._restarting.cancel()

    async def stop(self) -> bool:
        """Send SIGTERM, and after the part's `stop_s` SIGKILL to the process and all that it started.

        Returns:
            Whether the process ended by itself in time.
        """
        keeper, self._restarting = self._restarting, None
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
        """Send SIGKILL to the process and all that it started, without waiting."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_log_lines(self, lines: int = 3) -> list[str]:
        """The last lines of the log, which may say why the process failed."""
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
    """Rename a log that is larger than `LOG_LIMIT` to `<name>.1`, which replaces an older one."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_name(log.name + ".1"))
