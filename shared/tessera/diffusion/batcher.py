"""Continuous batching of denoising steps: requests join and leave between steps, and share forward passes.

A caller runs `StepBatcher.generate` in its own thread, which encodes the prompt and decodes the clip; one further
thread denoises all requests in progress. Each step takes the request that has had least of the device, together with
others of its shape, so a short clip overtakes a long one and no request starves. A failure in a step ends only the
request that caused it. Knows no architecture (`tessera.diffusion.families` does) and no jobs.
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

MAX_STEPS_PASSED_OVER = 8
"""Steps in a row that other requests may take before a waiting request goes first."""


class SteppedModel(Protocol):
    """A model whose steps can be batched. `begin` and `decode` are called from many threads, `step` from one."""

    def begin(self, request: DiffusionRequest) -> DiffusionState:
        """Return the state of a request before its first step."""
        ...

    def step(self, states: Sequence[DiffusionState]) -> None:
        """Denoise each state by one step, in place."""
        ...

    def decode(self, state: DiffusionState) -> npt.NDArray[np.float32]:
        """Return the clip of a finished state: float32 [frames, height, width, 3] in 0..1."""
        ...

    @property
    def shapes(self) -> Shapes:
        """Sizes of the model from which the memory of a clip is estimated."""
        ...

    def preview(self, state: DiffusionState) -> Picture:
        """Return a frame of a state that is not finished."""
        ...

    def shape(self, state: DiffusionState) -> Hashable:
        """Return a key: states with equal keys can share their next forward pass."""
        ...

    def cost(self, state: DiffusionState) -> int:
        """Return the cost of one step, in any unit that is the same for all requests."""
        ...


class _Running:
    """A request whose steps are being computed."""

    def __init__(self, state: DiffusionState, on_step: Callable[[], None]) -> None:
        self.state = state
        self.on_step = on_step
        self.ended: Future[None] = Future()
        self.spent = 0
        """Sum of the costs of its finished steps."""
        self.passed_over = 0
        """Steps in a row that were given to others."""


class StepBatcher:
    """A `VideoModel` on top of a model that can step. Starts a thread, which ends with `close`.

    `on_step` is called in that thread, so a callback that blocks delays all other requests.

    Args:
        model: nobody else may step it.
        max_requests: requests in progress at once; further ones wait.
        memory: bytes that the requests in progress may take together; None does not limit them.
    """

    def __init__(self, model: SteppedModel, *, max_requests: int, memory: ClipMemoryBudget | None = None) -> None:
        self.model = model
        self.max_requests = max_requests
        self.memory = memory
        self.costs = BatchCosts()
        self._slots = threading.BoundedSemaphore(max_requests)
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="denoiser", daemon=True)
        self._thread.start()

    def generate(self, request: DiffusionRequest, on_step: OnStep, resume: Resume | None = None) -> Frames:
        """Implement `VideoModel.generate`.

        Raises:
            InvalidRequestError: the model cannot make this, or the clip would never fit into the memory.
            torch.OutOfMemoryError: the memory estimate was too low; only this request ends.
        """

        def check_cancelled() -> None:
            on_step(0, request.steps, None)

        with self._slots, translated_memory_errors(), self._reserve_memory(request, check_cancelled):
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

    def _reserve_memory(self, request: DiffusionRequest, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext() if self.memory is None else self.memory.hold(request, self.model.shapes, on_wait)

    def close(self) -> None:
        """Implement `VideoModel.close`."""
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
        except Exception:  # a failed preview must not end the clip
            logger.exception("%s has no preview of step %d", state.request.id, state.index)

    def _enter(self, running: _Running) -> Future[None]:
        with self._changed:
            if self._closing:
                raise UnavailableError("this worker is ending")
            # It starts at the least that others have spent, so that it is not owed the time before it came.
            running.spent = min((other.spent for other in self._running), default=0)
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
                # A defect of ours: all who wait get the error, and later requests are still served.
                logger.exception("the step loop failed")
                self._end_all(error)

    def _choose(self) -> list[_Running]:
        """Choose the next batch: the request that has spent least, then those of its shape that have spent least."""

        def rank(running: _Running) -> tuple[bool, int, int]:
            return running.passed_over < MAX_STEPS_PASSED_OVER, running.spent, self.model.cost(running.state)

        waiting = sorted(self._running, key=rank)
        shape = self.model.shape(waiting[0].state)
        alike = [running for running in waiting if self.model.shape(running.state) == shape]
        return alike[: self.costs.best(shape, len(alike))]

    def _step(self, batch: list[_Running]) -> None:
        before = [freeze(running.state) for running in batch]
        shape, started = self.model.shape(batch[0].state), time.perf_counter()
        error = self._try(batch)
        if error is None:
            if not any(
                running.state.request.step_cache for running in batch
            ):  # skipped steps would falsify the measurement
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
                torch.cuda.empty_cache()  # cached blocks of this size are of no use to smaller batches
        for running, snapshot in zip(batch, before, strict=True):
            if running.state.index == snapshot.index:
                snapshot.put_back(running.state)  # its scheduler may have stepped already
                self._step([running])
            else:
                self._account([running])

    def _try(self, batch: list[_Running]) -> Exception | None:
        try:
            with translated_memory_errors():
                self.model.step([running.state for running in batch])
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # so that the measured time is that of this step
        except Exception as error:  # noqa: BLE001 - given to the request it belongs to
            return error
        return None

    def _account(self, batch: list[_Running]) -> None:
        """Report a finished step to its requests, and count for the others that they were passed over."""
        for running in self._running:
            running.passed_over = 0 if running in batch else running.passed_over + 1
        for running in batch:
            running.spent += self.model.cost(running.state)
            try:
                running.on_step()
            except BaseException as error:  # noqa: BLE001 - stops the request; raised again in its own thread
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
