"""Upstreams: which servers there are, which models they have, which of them are ready, and which one gets a request.

Each upstream is polled for its models and, if it is one of the suite's services, for its readiness. A model that was
seen once stays known while its upstream is away, because "unavailable now" and "no such model" are different errors.

Does not know how a request is sent: `proxy` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

import aiohttp
import msgspec

from tessera.errors import InvalidRequestError, ModelNotFoundError, UnavailableError
from tessera.wire.decoding import DAMAGED
from tessera.wire.models import Card, Health, Model, Task
from tessera_gateway.affinity import by_affinity
from tessera_gateway.aliases import Aliases
from tessera_gateway.listings import ListedModels, alias_of, model_from, tasks_of
from tessera_gateway.metrics import GatewayMetrics
from tessera_gateway.upstream import POLL_S, State, Upstream

logger = logging.getLogger(__name__)

FIRST_POLL_S = 0.25
"""Seconds between two polls of an upstream that has not named a model yet."""
REFRESH_S = 0.5
"""Fewest seconds between two polls of all upstreams because of an unknown model, however many clients ask for one."""
REFRESH_WAIT_S = 1.0
"""Most seconds that a request for an unknown model waits for such a poll, so that one silent upstream delays no
others."""
MOST_FOUND = 1024
"""Most names whose upstreams are remembered between two polls."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Most bytes of an upstream's answer to a poll."""


class Upstreams:
    """All upstreams, kept up to date while `polling`."""

    def __init__(
        self, upstreams: Sequence[Upstream], metrics: GatewayMetrics, *, aliases: Aliases, timeout_s: float
    ) -> None:
        self.all = list(upstreams)
        self.aliases = aliases
        self.metrics = metrics
        self.timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=timeout_s)
        for upstream in self.all:
            metrics.show_in_flight(upstream.name, partial(getattr, upstream, "in_flight"))
        self._session: aiohttp.ClientSession | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = 0.0
        self._found: dict[tuple[str, Task], tuple[str, list[Upstream]]] = {}
        """What `known` found since the last poll."""

    @contextlib.asynccontextmanager
    async def polling(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Poll every upstream in the background, each on its own clock, until the context ends."""
        self._session = session
        tasks = [asyncio.create_task(self._watch(upstream), name=f"poll {upstream.name}") for upstream in self.all]
        try:
            yield
        finally:
            if self._refreshing is not None:
                tasks.append(self._refreshing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Ask all upstreams now and wait a little, unless that was done a moment ago; callers share one round."""
        if self._refreshing is None or self._refreshing.done():
            if time.monotonic() - self._refreshed_at < REFRESH_S:
                return
            self._refreshing = asyncio.create_task(self._poll_all())
        await asyncio.wait({self._refreshing}, timeout=REFRESH_WAIT_S)

    def models(self) -> list[Model]:
        """Every known model once, in the order of the settings; no aliases."""
        found: dict[str, Model] = {}
        for upstream in self.all:
            for model in upstream.models.values():
                found.setdefault(model.id, model)
        return list(found.values())

    def listed(self) -> list[Model]:
        """What `/v1/models` lists: every known model, and the aliases that are no patterns and lead to one."""
        known = {model.id: model for model in self.models()}
        names = [name for name in self.aliases.names if name not in known]
        aliases = [(name, known.get(self.own_name(name))) for name in names]
        return [*known.values(), *[alias_of(name, model) for name, model in aliases if model is not None]]

    def own_name(self, name: str) -> str:
        """The model that a name stands for, by what is known now: the name itself if an upstream lists it, if it is no
        alias, or if the alias's model is not here."""
        if self._is_listed(name):
            return name
        own = self.aliases.model_of(name, self.first)
        return own if self._is_listed(own) else name

    async def resolve(self, name: str) -> str:
        """The model that a name stands for; asks the upstreams if that is no model that is known."""
        own = self.own_name(name)
        if not self._is_listed(own):
            await self.refresh()
            own = self.own_name(name)
        return own

    async def model(self, name: str) -> Model:
        """One model, or an alias as the model that it stands for.

        Raises:
            ModelNotFoundError: no upstream has it.
        """
        own = await self.resolve(name)
        for model in self.models():
            if model.id == own:
                return model if own == name else alias_of(name, model)
        raise self._no_such(name)

    async def card(self, name: str | None, task: Task) -> Card:
        """The card of a model by its name, or of the first that can do `task`; its upstream may be away.

        Raises:
            ModelNotFoundError, InvalidRequestError, UnavailableError: for the reasons of `candidates`.
        """
        for attempt in range(2):
            own = None if name is None else self.own_name(name)
            for model in self.models():
                if model.card is not None and task in model.card.tasks and own in {None, model.id}:
                    return model.card
            if attempt == 0:
                await self.refresh()
        if name is None:
            raise UnavailableError(f"no model for {task} is known yet; try again", retry_after=POLL_S)
        raise self._not_able(name, task)

    async def candidates(self, model: str, task: Task, cache_key: str = "") -> list[Upstream]:
        """The upstreams that may answer, best first: ready before starting, then the one that `cache_key` belongs to
        (if there is a key), then fewest requests in flight, then fewest sent.

        Raises:
            ModelNotFoundError: no upstream has the model; the message names the models that there are.
            InvalidRequestError: the model cannot do this task.
            UnavailableError: the upstreams that have the model are away.
        """
        able = self._able(self.own_name(model), task)
        if not any(upstream.reachable for upstream in able):
            await self.refresh()
            able = self._able(self.own_name(model), task)
        if not able:
            raise self._not_able(model, task)
        if not any(upstream.reachable for upstream in able):
            away = "; ".join(f"{upstream.name}: {upstream.reason}" for upstream in able)
            logger.warning("no upstream for model %s: %s", model, away)
            names = ", ".join(upstream.name for upstream in able)
            raise UnavailableError(
                f"the model {model!r} is served by {names}, which cannot be reached now; try again",
                retry_after=min(upstream.back_in_s() for upstream in able),
            )
        return self._best(able, cache_key)

    def known(self, name: str, task: Task, cache_key: str = "") -> tuple[str, list[Upstream]]:
        """The model that a name stands for, and its `candidates`, by what is known now. There are none if upstreams
        would have to be asked first, or if there is an error to raise."""
        found = self._found.get((name, task))
        if found is None:
            own = self.own_name(name)
            found = own, self._able(own, task)
            if found[1] and len(self._found) < MOST_FOUND:
                self._found[name, task] = found
        own, able = found
        return own, self._best(able, cache_key)

    def _best(self, able: list[Upstream], cache_key: str) -> list[Upstream]:
        """Those that can be reached, in the order of `candidates`."""
        reachable = [upstream for upstream in able if upstream.reachable]
        if len(reachable) < 2:
            return reachable
        best = sorted(reachable, key=lambda upstream: (upstream.state != "ok", upstream.in_flight, upstream.sent))
        if not cache_key:
            return best
        ready = sum(upstream.state == "ok" for upstream in best)
        return [*by_affinity(best[:ready], cache_key), *best[ready:]]

    def states(self) -> dict[str, str]:
        """The state of each upstream by name, for `/ready`."""
        return {upstream.name: upstream.state for upstream in self.all}

    def _able(self, model: str, task: Task) -> list[Upstream]:
        return [upstream for upstream in self.all if upstream.can(model, task)]

    def _not_able(self, model: str, task: Task) -> ModelNotFoundError | InvalidRequestError | UnavailableError:
        own = self.own_name(model)
        known = next((found for found in self.models() if found.id == own), None)
        if known is None:
            return self._no_such(model)
        tasks = ", ".join(sorted(tasks_of(known)))
        others = [other.id for other in self.models() if any(upstream.can(other.id, task) for upstream in self.all)]
        advice = f"; for {task} there is: {', '.join(others)}" if others else f"; no model here does {task}"
        return InvalidRequestError(
            f"the model {own!r} does {tasks}, not {task}{advice}", param="model", code="model_not_capable"
        )

    def _no_such(self, model: str) -> ModelNotFoundError | UnavailableError:
        names = [known.id for known in self.models()]
        if not names and self.all:
            return UnavailableError("no upstream has named its models yet; try again", retry_after=POLL_S)
        there = f"there are: {', '.join(names)}" if names else "no upstream is configured"
        silent = [upstream.name for upstream in self.all if not upstream.models]
        if silent:
            there += f" (not heard from yet: {', '.join(silent)})"
        target = self.aliases.target(model)
        if target is not None:
            return ModelNotFoundError(
                f"{model!r} stands for {target} (gateway.aliases), which is not here; {there}", param="model"
            )
        return ModelNotFoundError(f"there is no model {model!r} here; {there}", param="model")

    def _is_listed(self, name: str) -> bool:
        return any(name in upstream.models for upstream in self.all)

    def first(self, task: Task) -> str | None:
        """The first model that does a task; for embeddings an encoder before a language model. None without one.

        A model without a card may be any kind, so none is taken for a task of encoders alone.
        """
        able = [model for model in self.models() if task in tasks_of(model)]
        able = [model for model in able if model.card is not None or task in {"chat", "completions", "embeddings"}]
        encoders = [model for model in able if task != "embeddings" or "chat" not in tasks_of(model)]
        return next((model.id for model in [*encoders, *able]), None)

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            try:
                await self._poll(upstream)
            except Exception:
                logger.exception("polling upstream %s failed", upstream.name)
            await asyncio.sleep(POLL_S if upstream.models else FIRST_POLL_S)

    async def _poll_all(self) -> None:
        await asyncio.gather(*(self._poll(upstream) for upstream in self.all))
        self._refreshed_at = time.monotonic()

    async def _poll(self, upstream: Upstream) -> None:
        try:
            status, body = await self._get(upstream, "/v1/models")
            if status != 200:
                upstream.lost(f"GET /v1/models answered {status}")
            else:
                listed = msgspec.json.decode(body, type=ListedModels)
                models = {entry.id: model_from(entry, upstream.name) for entry in listed.data}
                state, reason = await self._readiness(upstream)
                # A service that restarted lists nothing until it has loaded; its models stay known meanwhile.
                upstream.seen(upstream.models if state == "starting" and not models else models, state, reason)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            upstream.lost(str(error) or type(error).__name__)
        except DAMAGED as error:
            upstream.lost(f"GET /v1/models answered what is no list of models: {error}")
        self._found.clear()
        self.metrics.up.labels(upstream.name).set(1 if upstream.state == "ok" else 0)

    async def _readiness(self, upstream: Upstream) -> tuple[State, str]:
        if not upstream.ours:
            return "ok", ""
        _, body = await self._get(upstream, "/ready")
        health = msgspec.json.decode(body, type=Health)
        parts = ", ".join(f"{name} is {state}" for name, state in health.parts.items() if state != "ok")
        return health.status, parts

    async def _get(self, upstream: Upstream, path: str) -> tuple[int, bytes]:
        assert self._session is not None, "polled outside of `polling`"
        async with self._session.get(
            upstream.url + path, headers=upstream.headers, timeout=self.timeout, allow_redirects=False
        ) as response:
            body = await response.content.read(MAX_ANSWER_BYTES)
            while chunk := await response.content.read(MAX_ANSWER_BYTES):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"GET {path} answered more than {MAX_ANSWER_BYTES} bytes")
            return response.status, body
