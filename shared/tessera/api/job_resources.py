"""The collaborators of job routes: the job store, the artifact store, the bell and the cards of models.

`JobResources.accept` is how a job whose files are stored is accepted: its record is written, then a worker is rung for.
Knows no route, and nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tessera.errors import TesseraError, UnavailableError
from tessera.jobs.artifacts.store import ArtifactStore
from tessera.jobs.bell import Bell
from tessera.jobs.records import Created
from tessera.jobs.store import AsyncJobStore, Idempotency
from tessera.settings.tree import Settings
from tessera.wire.jobs import Job, JobKind
from tessera.wire.models import Card

logger = logging.getLogger(__name__)

Cards = Callable[[str | None], Awaitable[Card]]
"""Finds the card of a model by name (None: the default model). Raises `ModelNotFoundError` or `UnavailableError`."""


@dataclass(frozen=True)
class NewJob:
    """A job that is about to be accepted; its files are stored under keys that begin with `id`."""

    id: str
    kind: JobKind
    owner: str
    queue: str
    job_input: msgspec.Struct
    """The input of the job, which its worker gets."""
    cost: float
    """Work of the job, in a unit of its queue."""
    idempotency: Idempotency | None
    priority: int
    """Place among the jobs of the owner: higher waits longer."""
    deadline_s: float | None
    """Seconds from now until the job is failed if it has not ended; None for no limit."""
    webhook: str | None
    """Address that is told when the job has ended, checked before."""


@dataclass(frozen=True)
class JobResources:
    """The collaborators of job routes, made once for each app; handlers get them as `jobs: Injected[JobResources]`."""

    store: AsyncJobStore
    artifacts: ArtifactStore
    bell: Bell
    cards: Cards
    settings: Settings

    async def accept(self, new: NewJob, check: Callable[[Job], None] = lambda _: None) -> Created:
        """Write the record of a job whose files are stored, then ring for it.

        A job that is refused, or that repeats one accepted before, leaves no files.

        Args:
            new: the job.
            check: refuses the job by its record, which has the estimated times; not called for a repeated one.

        Raises:
            TesseraError: as `AsyncJobStore.create` and `check`.
        """
        try:
            created = await self.store.create(
                new.id,
                kind=new.kind,
                owner=new.owner,
                queue=new.queue,
                job_input=new.job_input,
                idempotency=new.idempotency,
                cost=new.cost,
                priority=new.priority,
                deadline_s=new.deadline_s,
                webhook=new.webhook,
            )
        except TesseraError:
            await self.remove_files(new.id)
            raise
        if created.replayed:
            await self.remove_files(new.id)
            return created
        try:
            check(created.job)
        except TesseraError:
            await self.store.delete(new.id, kind=new.kind, owner=new.owner)
            await self.remove_files(new.id)
            raise
        await self.ring(created.job)
        return created

    async def ring(self, job: Job) -> None:
        """Tell a worker of a new job. A bell that does not answer is no error, because the reaper rings too."""
        try:
            await asyncio.to_thread(self.bell.ring, job.id, job.queue)
        except TesseraError as error:
            logger.warning("%s was not rung for (%s); the reaper will", job.id, error.message)

    async def remove_files(self, job_id: str) -> None:
        """Remove the files of a job that has no record any more; the reaper does so later if the store is down."""
        try:
            await asyncio.to_thread(self.artifacts.remove, job_id)
        except UnavailableError as error:
            logger.warning("the files of %s stay until they are stale: %s", job_id, error.message)
