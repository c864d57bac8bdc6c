"""The supervisor: starts the parts, reports when each is ready, keeps them running, and stops them in order.

`run` is `tessera up`. Knows neither how a process is kept running (`child`), nor what it answers (`readiness`), nor how
results are shown (`report`).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tessera.errors import StartError
from tessera.settings.load import environment as settings_environment
from tessera.settings.tree import Settings
from tessera.suite import doctor, embedded_redis, lock, summary
from tessera.suite.child import Child
from tessera.suite.disk_watch import watch_disk
from tessera.suite.fetch import fetch_missing
from tessera.suite.parts import STOP_ORDER, Selection, SuitePart, environment, parts
from tessera.suite.report import Terminal
from tessera.suite.watch import HealthWatch

REDIS_START_S = 30.0
STALLED_S = 180.0
"""Seconds without a change of state after which the table is shown although parts are still starting."""
GATEWAY_AGREES_S = 6.0
SAME_SIGNAL_S = 1.0
"""Seconds within which several signals count as one: `timeout` and `make` send SIGTERM to a process and its group."""


def run(
    settings: Settings,
    selection: Selection,
    *,
    config: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    skip_doctor: bool = False,
) -> int:
    """Bring the suite up and serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        settings: the loaded settings.
        selection: the parts to start.
        config: absolute path of the settings file, which the parts read too; None without a file.
        overrides: values that the command line set, which the parts get too.
        skip_doctor: whether to start even if the doctor finds what will fail.

    Returns:
        Exit status: 0 after a requested stop, 1 when nothing can serve.

    Raises:
        StartError: a suite runs on the same data directory, or the doctor found what prevents a start.
    """
    with lock.held(settings.data_dir) as descriptor:
        logs = settings.data_dir / "logs"
        logs.mkdir(exist_ok=True)
        terminal = Terminal(sys.stdout, logs / "suite.log")
        _examine(settings, selection, terminal, skip_doctor=skip_doctor)
        part_environment = environment(config, _for_parts(settings, selection, overrides or {}), settings_environment())
        supervisor = Supervisor(
            settings, selection, parts(settings, selection), part_environment, logs, terminal, descriptor
        )
        return asyncio.run(supervisor.serve())


class Supervisor:
    """The suite while it runs.

    Args:
        settings: settings of the suite.
        selection: the parts that the user wants.
        wanted: the processes of these parts.
        part_environment: environment of all processes.
        logs: directory of the processes' logs.
        terminal: prints changes and the table.
        lock_descriptor: file descriptor of the data directory's lock, which all processes inherit.
    """

    def __init__(
        self,
        settings: Settings,
        selection: Selection,
        wanted: Sequence[SuitePart],
        part_environment: Mapping[str, str],
        logs: Path,
        terminal: Terminal,
        lock_descriptor: int,
    ) -> None:
        self.settings = settings
        self.selection = selection
        self.part_environment = part_environment
        self.logs = logs
        self.terminal = terminal
        self.lock_descriptor = lock_descriptor
        self.children = {part.name: self._child(part) for part in wanted}
        self.stopping = asyncio.Event()
        self.asked_at = 0.0

    async def serve(self) -> int:
        """Start all parts, serve until a signal, stop them. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(sign, self._on_signal, sign)
        async with aiohttp.ClientSession() as session:
            foreign = bool(self.settings.gateway.upstreams)
            watch = HealthWatch(session, self.children, self.terminal.progress, has_foreign_upstreams=foreign)
            serving = asyncio.create_task(self._bring_up(session, watch))
            asked = asyncio.create_task(self.stopping.wait())
            try:
                await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done() and not asked.done():
                    serving.result()
                    self.terminal.print("nothing can serve; stopping")
                    return 1
                return 0
            finally:
                for task in (serving, asked):
                    task.cancel()
                await asyncio.gather(serving, asked, return_exceptions=True)
                await self._stop()

    async def _bring_up(self, session: aiohttp.ClientSession, watch: HealthWatch) -> None:
        """Start all parts, show the table, watch them. Returns only when nothing can serve."""
        if "redis" in self.children:
            await self._start_redis()
        async with asyncio.TaskGroup() as tasks:
            fetching = tasks.create_task(
                fetch_missing(self.settings, self.selection, self.part_environment, self.terminal.progress)
            )
            for name, child in self.children.items():
                if name != "redis":
                    child.start()
            watching = tasks.create_task(watch.run())
            tending = [watching]
            if "redis" in self.children:
                tending.append(tasks.create_task(watch_disk(self.settings.data_dir, self.terminal.progress)))
            await watch.settled(stalled_s=STALLED_S, gateway_s=GATEWAY_AGREES_S)
            await self._show(session, watch)
            await watch.nothing_can_serve.wait()
            for task in (fetching, *tending):
                task.cancel()

    async def _start_redis(self) -> None:
        child = self.children["redis"]
        path = embedded_redis.socket_path(self.settings.data_dir)
        path.parent.mkdir(exist_ok=True)
        child.start()
        deadline = time.monotonic() + REDIS_START_S
        while not await embedded_redis.answers(path):
            if child.state == "failed" or time.monotonic() > deadline:
                raise StartError("the embedded Redis does not start: " + " / ".join(child.last_log_lines()))
            await asyncio.sleep(0.02)
        child.was_ready = True
        self.terminal.progress("redis", f"ready on {path}")

    async def _show(self, session: aiohttp.ClientSession, watch: HealthWatch) -> None:
        text = await summary.summary(session, self.settings, self.selection, watch, self.children)
        self.terminal.print(text)
        if not watch.nothing_can_serve.is_set():
            seconds = time.monotonic() - self.terminal.started
            self.terminal.print(f"\nready in {seconds:.1f} s; Ctrl-C stops it; logs are in {self.logs}")

    async def _stop(self) -> None:
        for child in self.children.values():
            child.stop_restarting()
        for kinds in STOP_ORDER:
            children = [
                child for child in self.children.values() if child.part.kind in kinds and child.state != "stopped"
            ]
            willing = await asyncio.gather(*(child.stop() for child in children))
            for child, ended in zip(children, willing, strict=True):
                self.terminal.progress(child.part.name, "stopped" if ended else "killed: it did not stop in time")

    def _on_signal(self, sign: signal.Signals) -> None:
        if self.stopping.is_set():
            if time.monotonic() - self.asked_at > SAME_SIGNAL_S:
                self.terminal.print("asked twice: killing what still runs")
                for child in self.children.values():
                    child.kill()
            return
        self.asked_at = time.monotonic()
        self.terminal.print(f"\n{sign.name}: stopping; once more kills")
        self.stopping.set()

    def _child(self, part: SuitePart) -> Child:
        log = self.logs / f"{part.name}.log"
        return Child(part, self.part_environment, log, self.terminal.progress, inherits=[self.lock_descriptor])


def _examine(settings: Settings, selection: Selection, terminal: Terminal, *, skip_doctor: bool) -> None:
    findings = doctor.examine(settings, selection)
    bad = [finding for finding in findings if finding.level != "ok"]
    if bad:
        terminal.print(doctor.shown(bad))
    if any(finding.level == "fail" for finding in bad) and not skip_doctor:
        raise StartError("nothing was started; mend what fails above, or start anyway by --skip-doctor")


def _for_parts(settings: Settings, selection: Selection, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides that all parts must agree on: the data directory, and the services that the gateway fronts."""
    merged: dict[str, Any] = {section: dict(keys) for section, keys in overrides.items()}
    merged.setdefault("suite", {})["data"] = str(settings.data_dir)
    merged.setdefault("gateway", {})["services"] = list(selection.services)
    return merged
