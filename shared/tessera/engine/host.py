"""What a service with a sequence engine holds: its engine's client and, once the engine is ready, the model's tools.

The tokenizer and the template come from the directory that the engine says it has loaded, so both sides agree, also
after a restart with another model.
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
    """One engine process and what is made from its model's directories.

    Args:
        name: the service; the engine is `<name> engine` in logs and errors.
        module: what runs as the engine process.
        registry: where the engine's metrics are shown.
        build: makes the tools from what the engine has loaded. Called once per loaded model, off the hot path.
        prepare: called with the tools after each start of the engine; the service is ready when it has succeeded.
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
        """For `/ready`. Makes the tools as soon as the engine is there, so that no request has to wait for them."""
        try:
            await self._current()
        except TesseraError:
            logger.exception("the %s has loaded a model that cannot be served", self.engine.name)
            return {"engine": "failed"}
        return {"engine": self.engine.state()}

    async def tools(self, model: str) -> Tools:
        """The tools of the model that a request names; the last ones while the engine starts again.

        Raises:
            UnavailableError: the engine has not loaded yet.
            ModelNotFoundError: it has loaded another.
        """
        tools = await self._current()
        if tools is None:
            problem = self.engine.problem
            state = f"is down: {problem.message}" if problem else "is still loading its model"
            raise UnavailableError(f"the {self.engine.name} {state}", retry_after=2)
        find_model(self.models(), model)
        return tools

    async def _current(self) -> Tools | None:
        """The tools of what the engine has loaded, made in a thread when they are not there yet."""
        async with self._making:
            ready = self.engine.ready
            if ready is not None and not _same(ready, self._ready):
                self._tools = self._ready = None  # it has come back with another model
                self._tools = await asyncio.to_thread(self._build, ready, self.engine)
                self._ready = ready
            if ready is not None and self._tools is not None and ready is not self._prepared_for:
                if self._prepare is not None:
                    try:
                        await self._prepare(self._tools)
                    except TesseraError as error:  # the operator's fault, not that of a request that comes now
                        raise UnavailableError(f"the {self.engine.name} is not ready: {error.message}") from error
                self._prepared_for = ready
            return self._tools

    def models(self) -> ModelList:
        """What `/v1/models` answers: empty until the engine has loaded."""
        ready = self.engine.ready or self._ready
        if ready is None:
            return ModelList(data=[])
        return ModelList(data=[model_of(card, ready.device) for card in ready.cards])


def _same(one: Ready, other: Ready | None) -> bool:
    return other is not None and (one.cards, one.directories) == (other.cards, other.directories)


def context_of(card: Card) -> int:
    """Positions of one request that the engine holds; its own word, which is in every card that it sends."""
    assert card.context_length is not None
    return card.context_length


def directory_of(ready: Ready) -> Path:
    """The directory of an engine's only model."""
    return Path(ready.directories[0])
