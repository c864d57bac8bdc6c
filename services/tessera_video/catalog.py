"""Which video models can be asked for now, and where they run: what live workers say, and the card on this disk.

Does not know requests. Torch-free.
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
from tessera.hub.store import locate, name_of
from tessera.jobs.records import WorkerInfo
from tessera.jobs.store import AsyncJobStore
from tessera.settings.tree import Settings
from tessera.wire.models import Card, Model, ModelList

logger = logging.getLogger(__name__)

REFRESH_S = 1.0


class Catalog:
    """A picture of the workers, a second old at most.

    Args:
        settings: say the default model.
        store: where workers are registered.

    Raises:
        SettingsError: `video.adapters` is not as it has to be.
    """

    def __init__(self, settings: Settings, store: AsyncJobStore) -> None:
        self.settings = settings
        self.store = store
        self.workers: Sequence[WorkerInfo] = ()
        self.adapters = sorted(adapter_files(settings.video.adapters))
        self._own: Card | None = None

    def models(self) -> ModelList:
        """The default model first, then whatever else workers have; `device` is where the first worker runs it."""
        return ModelList(data=[self._model(card) for card in self._cards()])

    async def card(self, name: str | None) -> Card:
        """The card of a model; None is the default one.

        Raises:
            ModelNotFoundError: no worker has it, and it is not the default one.
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
        """Whether anybody can make a video of the default model now."""
        cards = self._cards()
        return bool(cards) and any(worker.card.id == cards[0].id for worker in self.workers)

    async def refresh(self) -> None:
        """Look again.

        Raises:
            UnavailableError: Redis is down; the last picture stays.
        """
        self._own = self._own or await asyncio.to_thread(self._on_disk)
        self.workers = [worker for worker in await self.store.workers() if worker.kind == "video"]

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Litestar) -> AsyncIterator[None]:
        """Keep looking while the app serves."""
        looking = asyncio.create_task(self._keep_looking())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while True:
            started = time.monotonic()
            with contextlib.suppress(UnavailableError):
                await self.refresh()
            await asyncio.sleep(max(0.1, REFRESH_S - (time.monotonic() - started)))

    def _on_disk(self) -> Card | None:
        """The default model's card, if a directory is there: a worker on this machine may still be making it."""
        try:
            found = locate(self.settings.video.model, self.settings.models_dir)
        except TesseraError as error:
            logger.debug("no card on this disk: %s", error.message)
            return None
        if found is None:
            return None
        return msgspec.structs.replace(found.card, adapters=self.adapters)

    def _cards(self) -> list[Card]:
        default = name_of(self.settings.video.model)
        cards = {card.id: card for card in ([self._own] if self._own else [])}
        for worker in sorted(self.workers, key=_capacity, reverse=True):
            cards[worker.card.id] = worker.card  # of several, the one that has the least memory
        own = self._own.id if self._own else default
        return sorted(cards.values(), key=lambda card: (card.id != own, card.id))

    def _model(self, card: Card) -> Model:
        devices = [worker.device for worker in self.workers if worker.card.id == card.id]
        return Model(id=card.id, created=card.created, card=card, device=devices[0] if devices else None)


def _capacity(worker: WorkerInfo) -> float:
    known = worker.card.clip_memory
    return math.inf if known is None else known.capacity
