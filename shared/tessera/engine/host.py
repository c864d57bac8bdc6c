"""What a service holds of its engine: the client and, once the engine is ready, the tools of its model.

The tools (tokenizer, template and what is built on them) are made from the directory that the engine has loaded, so
that both sides agree even after a restart with another model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

from litestar import Litestar
from prometheus_client import CollectorRegistry

from tessera.engine.client import EngineClient, python_module
from tessera.errors import TesseraError, UnavailableError
from tessera.settings.load import environment
from tessera.web.metrics import ReportedMetrics
from tessera.web.models import find_model, model_of
from tessera.wire.engine import Ready
from tessera.wire.models import Card, ModelList

Tools = TypeVar("Tools")

logger = logging.getLogger(__name__)


class EngineHost(Generic[Tools]):
    """One engine process, and the tools made from its model's directory.

    Args:
        name: of the service; the engine is `<name> engine` in logs and errors.
        module: runs as the engine process.
        registry: where the engine's metrics are registered.
        build: makes the tools from what the engine has loaded. Called in a thread, once for each loaded model.
        prepare: called with the tools after each start of the engine; the service is ready once it has succeeded.
    """

    def __init__(
        self,
        name: str,
        module: str,
        registry: CollectorRegistry,
        build: Callable[[Ready, EngineClient], Tools],
        prepare: Callable[[Tools], Awaitable[None]] | None = None,
    ) -> None:
        metrics = ReportedMetrics(registry, f"tessera_{name}_engine")
        self.engine = EngineClient(
            python_module(module), name=f"{name} engine", on_metrics=metrics.update, environment=environment()
        )
        self._build = build
        self._tools: Tools | None = None
        self._ready: Ready | None = None
        self._prepare = prepare
        self._prepared_for: Ready | None = None
        self._making = asyncio.Lock()

    @asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Start and end the engine with an app."""
        await self.engine.start()
        try:
            yield
        finally:
            await self.engine.close()

    async def states(self) -> Mapping[str, str]:
        """The engine's state for `/ready`. Makes the tools as soon as the engine is ready, so that no request waits."""
        try:
            await self._current()
        except TesseraError:
            logger.exception("the %s has loaded a model that cannot be served", self.engine.name)
            return {"engine": "failed"}
        return {"engine": self.engine.state()}

    async def tools(self, model: str) -> Tools:
        """The tools of the model that a request names; while the engine restarts, those of the last process.

        Raises:
            UnavailableError: the engine has not loaded a model yet.
            ModelNotFoundError: the engine has loaded another model.
        """
        tools = await self._current()
        if tools is None:
            problem = self.engine.problem
            state = f"is down: {problem.message}" if problem else "is still loading its model"
            raise UnavailableError(f"the {self.engine.name} {state}", retry_after=self.engine.ready_in_s())
        find_model(self.models(), model)
        return tools

    async def _current(self) -> Tools | None:
        """The tools of the loaded model, made in a thread if needed; None before the first model is loaded."""
        async with self._making:
            ready = self.engine.ready
            if ready is not None and not _same(ready, self._ready):
                self._tools = self._ready = None  # the engine restarted with another model
                self._tools = await asyncio.to_thread(self._build, ready, self.engine)
                self._ready = ready
            if ready is not None and self._tools is not None and ready is not self._prepared_for:
                if self._prepare is not None:
                    try:
                        await self._prepare(self._tools)
                    except TesseraError as error:  # the operator's fault, not the present request's
                        wait_s = self.engine.ready_in_s()
                        raise UnavailableError(
                            f"the {self.engine.name} is not ready: {error.message}", retry_after=wait_s
                        ) from error
                self._prepared_for = ready
            return self._tools

    def models(self) -> ModelList:
        """The answer of `/v1/models`; empty until the engine has loaded a model."""
        ready = self.engine.ready or self._ready
        if ready is None:
            return ModelList(data=[])
        return ModelList(data=[model_of(card, ready.device) for card in ready.cards])


def _same(one: Ready, other: Ready | None) -> bool:
    return other is not None and (one.cards, one.directories) == (other.cards, other.directories)


def context_of(card: Card) -> int:
    """Most positions of one request, which the engine writes into every card that it sends."""
    assert card.context_length is not None
    return card.context_length


def directory_of(ready: Ready) -> Path:
    """The directory of an engine's only model."""
    return Path(ready.directories[0])
