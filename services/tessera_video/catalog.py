"""The video models that can be requested now, and where they run: from live workers, and from the card on this disk.

Knows no requests. Torch-free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from litestar import Litestar

from tessera.errors import ModelNotFoundError, TesseraError, UnavailableError
from tessera.hub.adapters import adapter_files
from tessera.hub.step_caches import CALIBRATION_FILE, step_caches_of
from tessera.hub.store import locate, name_of
from tessera.jobs.records import WorkerInfo
from tessera.jobs.store import AsyncJobStore
from tessera.settings.tree import Settings
from tessera.wire.models import Card, Model, ModelList, StepCacheName

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""Seconds between two reads of the registered workers."""


class Catalog:
    """The registered workers and their models, as of at most `REFRESH_S` ago.

    Args:
        settings: settings that name the default model.
        store: store in which workers are registered.

    Raises:
        SettingsError: `video.adapters` has an invalid entry.
    """

    def __init__(self, settings: Settings, store: AsyncJobStore) -> None:
        self.settings = settings
        self.store = store
        self.workers: Sequence[WorkerInfo] = ()
        self.adapters = sorted(adapter_files(settings.video.adapters))
        self._own: Card | None = None

    def models(self) -> ModelList:
        """Return the default model, then the workers' other models; `device` is that of a model's first worker."""
        return ModelList(data=[self._model(card) for card in self._cards()])

    async def card(self, name: str | None) -> Card:
        """Return the card of a model; None stands for the default model.

        Raises:
            ModelNotFoundError: no worker has the model, and it is not the default one.
            UnavailableError: the default model is still being made.
        """
        if not self._cards():
            await self.refresh()
        cards = self._cards()
        if not cards:
            raise UnavailableError("the video model is still being made; try again in a moment", retry_after=2)
        if name is None:
            return cards[0]
        for card in cards:
            if card.id == name:
                return card
        known = ", ".join(card.id for card in cards)
        raise ModelNotFoundError(f"there is no video model {name!r}; there are: {known}", param="model")

    def has_worker(self) -> bool:
        """Return whether a live worker has the default model."""
        cards = self._cards()
        return bool(cards) and any(worker.card.id == cards[0].id for worker in self.workers)

    async def refresh(self) -> None:
        """Read the workers and the card on this disk again.

        Raises:
            UnavailableError: Redis is down; the last known workers stay.
        """
        self._own = self._own or await asyncio.to_thread(self._on_disk)
        self.workers = [worker for worker in await self.store.workers() if worker.kind == "video"]

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Refresh periodically while the app serves."""
        refreshing = asyncio.create_task(self._keep_refreshing())
        try:
            yield
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)

    async def _keep_refreshing(self) -> None:
        while True:
            started = time.monotonic()
            with contextlib.suppress(UnavailableError):
                await self.refresh()
            await asyncio.sleep(max(0.1, REFRESH_S - (time.monotonic() - started)))

    def _on_disk(self) -> Card | None:
        """Return the default model's card; None while a worker on this machine is still making its directory."""
        try:
            found = locate(self.settings.video.model, self.settings.models_dir)
        except TesseraError as error:
            logger.debug("no card on this disk: %s", error.message)
            return None
        if found is None:
            return None
        calibrated = (found.path / CALIBRATION_FILE).is_file()
        step_caches = step_caches_of(calibrated=calibrated, shared_by=self.settings.video.devices)
        return msgspec.structs.replace(found.card, adapters=self.adapters, step_caches=step_caches)

    def _cards(self) -> list[Card]:
        default = name_of(self.settings.video.model)
        cards = {card.id: card for card in ([self._own] if self._own else [])}
        for worker in sorted(self.workers, key=_capacity, reverse=True):
            others = [other for other in self.workers if other.card.id == worker.card.id]
            # Of several workers, the one with the least memory, and the step caches that all of them have.
            cards[worker.card.id] = msgspec.structs.replace(worker.card, step_caches=_common_step_caches(others))
        own = self._own.id if self._own else default
        return sorted(cards.values(), key=lambda card: (card.id != own, card.id))

    def _model(self, card: Card) -> Model:
        devices = [worker.device for worker in self.workers if worker.card.id == card.id]
        return Model(id=card.id, created=card.created, card=card, device=devices[0] if devices else None)


def _common_step_caches(workers: Sequence[WorkerInfo]) -> list[StepCacheName] | None:
    known = [worker.card.step_caches for worker in workers if worker.card.step_caches is not None]
    return [name for name in known[0] if all(name in others for others in known)] if known else None


def _capacity(worker: WorkerInfo) -> float:
    known = worker.card.clip_memory
    return math.inf if known is None else known.capacity
