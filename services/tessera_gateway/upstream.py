"""One upstream, and what its last poll found: its models, whether it is ready, how long it was away. Polls nothing."""

from __future__ import annotations

import logging
import time

from tessera.wire.models import Model, ReadyStatus, Task
from tessera_gateway.listings import tasks_of

logger = logging.getLogger(__name__)

State = ReadyStatus

POLL_S = 2.0
"""Seconds between two polls of an upstream."""
MOST_AWAY_S = 120.0
"""Longest wait that a client is told for an upstream that is away, in seconds."""
CONTINUING = frozenset({"vllm", "sglang"})
"""What servers that take `continue_final_message` list as `owned_by`."""


class Upstream:
    """One server, and what its last poll found."""

    def __init__(self, name: str, url: str, *, api_key: str = "", ours: bool = False) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.ours = ours
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.models: dict[str, Model] = {}
        self.reachable = False
        self.state: State = "starting"
        self.reason = "it has not answered yet"
        self.in_flight = 0
        self.sent = 0
        self._away_since: float | None = time.monotonic()
        self._away_s: float | None = None
        """Seconds for which the server was away the last time."""

    def back_in_s(self) -> float:
        """Seconds until a server that is away is expected back: what is left of its last absence. Before a first one
        has ended, the time that it has taken."""
        if self._away_since is None:
            return POLL_S
        away_s = time.monotonic() - self._away_since
        left = away_s if self._away_s is None else self._away_s - away_s
        return max(POLL_S, min(left, MOST_AWAY_S))

    def lost(self, reason: str) -> None:
        """Record that a poll or a request could not reach the server. It gets no requests until a poll succeeds."""
        if self.reachable:
            logger.warning("upstream %s is down: %s", self.name, reason)
            self._away_since = time.monotonic()
        self.reachable = False
        self.reason = reason
        # Seen from outside, a server that has never named a model is starting.
        self.state = "failed" if self.models else "starting"

    def seen(self, models: dict[str, Model], state: State, reason: str) -> None:
        """Record that a poll succeeded."""
        if not self.reachable or self.state != state or models.keys() != self.models.keys():
            logger.info("upstream %s is %s with models: %s", self.name, state, ", ".join(models) or "none")
        self.models = models
        if self._away_since is not None:
            self._away_s, self._away_since = time.monotonic() - self._away_since, None
        self.reachable = True
        self.state = state
        self.reason = reason

    def can(self, model: str, task: Task) -> bool:
        """Whether this upstream has `model` and the model can do `task`."""
        found = self.models.get(model)
        if found is None:
            return False
        return task in tasks_of(found)

    def continues(self, model: str) -> bool:
        """Whether this upstream is known to take `continue_final_message`: a service of ours, or a server whose list
        says that vLLM or SGLang serves `model`. Others would take the last turn for a part of the history."""
        found = self.models.get(model)
        return self.ours or (found is not None and found.owned_by in CONTINUING)
