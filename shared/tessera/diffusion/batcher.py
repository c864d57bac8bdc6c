"""Step-level continuous batching of diffusion: requests join and leave between steps, and share forward passes.

Whoever wants a video calls `StepBatcher.generate` in a thread of its own, which encodes its prompt and decodes its clip
there; one thread steps all that are under way. Next is stepped who has had least of the device, together with others of
its shape: a short clip overtakes a long one at a step, and none is passed over for ever. What goes wrong in a step
ends the request that it is of, no other. Does not know an architecture (`diffusion_wan`), nor jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tessera.diffusion.batch_costs import BatchCosts
from tessera.diffusion.checkpoint import freeze, restore
from tessera.diffusion.out_of_memory import translated_memory_errors
from tessera.diffusion.request import DiffusionRequest, DiffusionState, Frames, OnStep, Picture, Resume, to_frames
from tessera.errors import UnavailableError
from tessera.hub.clip_memory import ClipMemoryBudget, Shapes

logger = logging.getLogger(__name__)

PATIENCE = 8
"""Steps that a request may be passed over in a row."""


class SteppedModel(Protocol):
    """What is batched. `begin` and `decode` are called from many threads, `step` from one."""

    def begin(self, request: DiffusionRequest) -> DiffusionState:
        """A request before its first step."""
        ...

    def step(self, states: Sequence[DiffusionState]) -> None:
        """Each of them one step further."""
        ...

    def decode(self, state: DiffusionState) -> npt.NDArray[np.float32]:
        """The clip of one that is done."""
        ...

    @property
    def shapes(self) -> Shapes:
        """What tells how much memory a clip takes."""
        ...

    def preview(self, state: DiffusionState) -> Picture:
        """A frame of one that is not done yet."""
        ...

    def shape(self, state: DiffusionState) -> Hashable:
        """Requests of equal shapes can share a forward pass now."""
        ...

    def cost(self, state: DiffusionState) -> int:
        """Of a step, in a unit of its own."""
        ...


class _Running:
    """A request that is stepped."""

    def __init__(self, state: DiffusionState, on_step: Callable[[], None]) -> None:
        self.state = state
        self.on_step = on_step
        self.ended: Future[None] = Future()
        self.had = 0
        """Cost of the steps that it was given."""
        self.passed_over = 0


class StepBatcher:
    """A `VideoModel` made of a model that can step. Starts a thread, which ends with `close`.

    `on_step` is called in that thread: whoever blocks there keeps all others waiting.

    Args:
        model: is stepped by nobody else.
        together: requests under way at once; more wait.
        memory: that they have; None: they are begun whatever they take.
    """

    def __init__(self, model: SteppedModel, *, max_requests: int, memory: ClipMemoryBudget | None = None) -> None:
        self.model = model
        self.max_requests = max_requests
        self.memory = memory
        self.costs = BatchCosts()
        self._room = threading.BoundedSemaphore(max_requests)
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="denoiser", daemon=True)
        self._thread.start()

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        """See `VideoModel.generate`.

        Raises:
            InvalidRequestError: also where the memory would never do.
            torch.OutOfMemoryError: the estimate was too low; only this request ends.
        """

        def look() -> None:
            on_step(0, request.steps, None)

        with self._room, translated_memory_errors(), self._held(request, look):
            state = self.model.begin(request)
            if resume is not None:
                restore(state, resume.data, resume.identity)

            def report() -> None:
                on_step(state.index, len(state.timesteps), lambda: freeze(state))
                self._preview(state)

            report()
            if not state.done:
                self._enter(_Running(state, report)).result()
            return to_frames(self.model.decode(state))

    def _held(self, request: DiffusionRequest, look: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext() if self.memory is None else self.memory.hold(request, self.model.shapes, look)

    def close(self) -> None:
        """See `VideoModel.close`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _preview(self, state: DiffusionState) -> None:
        every = state.request.preview_steps
        if not every or state.done or not state.index or state.index % every:
            return
        try:
            state.request.on_preview(self.model.preview(state))
        except Exception:  # a preview is never worth a clip
            logger.exception("%s has no preview of step %d", state.request.id, state.index)

    def _enter(self, running: _Running) -> Future[None]:
        with self._changed:
            if self._closing:
                raise UnavailableError("this worker is ending")
            # As if it had had what the others have: it is not owed the time before it came.
            running.had = min((other.had for other in self._running), default=0)
            self._running.append(running)
            self._changed.notify_all()
        return running.ended

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._running)
                if self._closing:
                    self._end_all(UnavailableError("this worker is ending"))
                    return
            try:
                self._step(self._choose())
            except Exception as error:
                # A fault of ours: whoever waits must hear of it, and those who come next be served.
                logger.exception("the step loop failed")
                self._end_all(error)

    def _choose(self) -> list[_Running]:
        """Who is stepped next: the one that has had least, and those of its shape that had least after it."""

        def rank(running: _Running) -> tuple[bool, int, int]:
            return running.passed_over < PATIENCE, running.had, self.model.cost(running.state)

        waiting = sorted(self._running, key=rank)
        shape = self.model.shape(waiting[0].state)
        alike = [running for running in waiting if self.model.shape(running.state) == shape]
        return alike[: self.costs.best(shape, len(alike))]

    def _step(self, batch: list[_Running]) -> None:
        before = [freeze(running.state) for running in batch]
        shape, started = self.model.shape(batch[0].state), time.perf_counter()
        error = self._try(batch)
        if error is None:
            if not any(running.state.request.step_cache for running in batch):  # those skip, and are no measure
                self.costs.record(shape, len(batch), time.perf_counter() - started)
            self._account(batch)
            return
        if len(batch) == 1 or isinstance(error, torch.AcceleratorError):
            for running in batch:
                self._end(running, error)
            return
        logger.warning("a step of %d requests failed and is made again one by one: %s", len(batch), error)
        if isinstance(error, torch.OutOfMemoryError):
            self.costs.record(shape, len(batch), float("inf"))
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # pieces of another size are of no use to those who come next
        for running, snapshot in zip(batch, before, strict=True):
            if running.state.index == snapshot.index:
                snapshot.put_back(running.state)  # its scheduler may have begun to step
                self._step([running])
            else:
                self._account([running])

    def _try(self, batch: list[_Running]) -> Exception | None:
        try:
            with translated_memory_errors():
                self.model.step([running.state for running in batch])
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # so that times are those of this step
        except Exception as error:  # noqa: BLE001 - told to whose request it is
            return error
        return None

    def _account(self, batch: list[_Running]) -> None:
        """A step was made: say so to whose it is, and remember who has waited."""
        for running in self._running:
            running.passed_over = 0 if running in batch else running.passed_over + 1
        for running in batch:
            running.had += self.model.cost(running.state)
            try:
                running.on_step()
            except BaseException as error:  # noqa: BLE001 - how a request is stopped; raised again where it waits
                self._end(running, error)
            else:
                if running.state.done:
                    self._end(running, None)

    def _end_all(self, error: Exception) -> None:
        for running in list(self._running):
            self._end(running, error)

    def _end(self, running: _Running, error: BaseException | None) -> None:
        with self._changed:
            self._running.remove(running)
        if error is None:
            running.ended.set_result(None)
        else:
            running.ended.set_exception(error)
