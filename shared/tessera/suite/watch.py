"""Polls the health of the parts, announces changes, and tells when all parts have settled.

A part has settled when it is ready, or when it is known that it cannot become ready. Starts and stops nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

import aiohttp

from tessera.suite import readiness
from tessera.suite.child import Announce, Child
from tessera.wire.models import Health

State = Literal["starting", "ready", "failed"]
POLL_S = 0.1
"""Seconds between two polls of a part that is not ready."""
POLL_READY_S = 1.0
"""Seconds between two polls of a part that is ready."""
MISSES = 3
"""Polls in a row without an answer after which a ready part counts as down."""


class HealthWatch:
    """The states of all parts that answer `/ready`.

    Args:
        session: HTTP client for the polls.
        children: all parts by name; a part without a url is not polled.
        announce: called for every change.
        has_foreign_upstreams: whether the gateway has upstreams that are not ours, so that it can serve without our
            services.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        children: Mapping[str, Child],
        announce: Announce,
        *,
        has_foreign_upstreams: bool,
    ) -> None:
        self.session = session
        self.children = children
        self.announce = announce
        self.polled = {name: child for name, child in children.items() if child.part.url}
        self.states: dict[str, State] = dict.fromkeys(self.polled, "starting")
        self.reasons: dict[str, str] = {}
        self.alive: set[str] = set()
        self.nothing_can_serve = asyncio.Event()
        self._can_serve = has_foreign_upstreams
        self._news = asyncio.Event()
        self._last_news = time.monotonic()

    @property
    def not_ready(self) -> list[str]:
        """Names of the services that are not ready."""
        return [name for name, state in self.states.items() if name != "gateway" and state != "ready"]

    async def run(self) -> None:
        """Poll all parts until this task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self.polled:
                tasks.create_task(self._follow(name))

    async def settled(self, *, stalled_s: float, gateway_s: float) -> None:
        """Return when all services have settled and the gateway has noticed.

        Args:
            stalled_s: seconds without a change after which this returns as well.
            gateway_s: seconds that the gateway has to notice that the last service has settled.
        """
        services = [name for name in self.polled if name != "gateway"]
        while any(self.states[name] == "starting" for name in services):
            if not await self._news_within(self._last_news + stalled_s - time.monotonic()):
                return
        limit = gateway_s if services else stalled_s
        while self.states.get("gateway") == "starting" and not self.nothing_can_serve.is_set():
            waited = limit if "gateway" in self.alive else stalled_s
            if not await self._news_within(self._last_news + waited - time.monotonic()):
                return

    async def _news_within(self, seconds: float) -> bool:
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), max(seconds, 0.01))
        except TimeoutError:
            return False
        return True

    async def _follow(self, name: str) -> None:
        child = self.polled[name]
        assert child.part.url is not None
        misses = restarts = 0
        while True:
            if child.restarts != restarts:
                restarts = child.restarts
                self.states[name] = "starting"
            answer = await readiness.health(self.session, child.part.url)
            misses = 0 if answer is not None and child.pid is not None else misses + 1
            state = self._judge(name, child, answer)
            if state != self.states[name] and (misses == 0 or misses >= MISSES or state == "failed"):
                await self._enter(name, child, state, answer)
            elif answer is not None and name not in self.alive:
                self.alive.add(name)
                self._tell()
            await asyncio.sleep(POLL_READY_S if self.states[name] == "ready" else POLL_S)

    def _judge(self, name: str, child: Child, answer: Health | None) -> State:
        if child.state == "failed" or self._workers_failed(name):
            return "failed"
        if answer is None or child.pid is None:
            return "starting"
        if answer.status == "ok":
            return "ready"
        return "failed" if answer.status == "failed" and name != "gateway" else "starting"

    def _workers_failed(self, service: str) -> bool:
        workers = [
            child
            for child in self.children.values()
            if child.part.kind == "worker" and child.part.service == service and child.part.vital
        ]
        return bool(workers) and all(worker.state == "failed" for worker in workers)

    async def _enter(self, name: str, child: Child, state: State, answer: Health | None) -> None:
        reason = await self._reason(name, child) if state == "failed" else None
        before, self.states[name] = self.states[name], state
        self.reasons.pop(name, None)
        if state == "ready":
            for mate in self.children.values():
                if mate is child or mate.part.mate_of == name:
                    mate.was_ready = True
            self.announce(name, "ready again" if child.restarts or before == "failed" else "ready")
        elif reason is not None:
            self.reasons[name] = reason
            self.announce(name, f"failed: {reason}")
        else:
            parts = ", ".join(f"{part} {value}" for part, value in (answer.parts if answer else {}).items())
            self.announce(name, f"not ready any more: {parts or 'it does not answer'}")
        self._tell()

    def _tell(self) -> None:
        self._last_news = time.monotonic()
        others = [state for name, state in self.states.items() if name != "gateway"]
        self._can_serve = self._can_serve or "ready" in others
        nothing_left = bool(others) and all(state == "failed" for state in others)
        if (nothing_left and not self._can_serve) or self.states.get("gateway") == "failed":
            self.nothing_can_serve.set()
        self._news.set()

    async def _reason(self, name: str, child: Child) -> str:
        assert child.part.url is not None
        said = await readiness.problem(self.session, child.part.url)
        if said:
            return said
        mates = [mate for mate in self.children.values() if mate.part.service == name and mate.state == "failed"]
        words = (mates[0] if mates else child).last_log_lines(1)
        return words[0] if words else f"see {child.log}"
