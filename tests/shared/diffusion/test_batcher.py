"""Batched steps: which request is next, what each is told, and that a failure ends only the request that caused it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tessera.diffusion.batch_costs import RETRY_STEPS, BatchCosts, sizes
from tessera.diffusion.batcher import MAX_STEPS_PASSED_OVER, StepBatcher
from tessera.diffusion.request import DiffusionRequest, DiffusionState, Frames, Resume, ResumeError
from tessera.errors import UnavailableError

DEADLINE_S = 20.0


def request(name: str, *, steps: int = 4, width: int = 8) -> DiffusionRequest:
    return DiffusionRequest(
        id=name,
        prompt="",
        negative_prompt="",
        width=width,
        height=8,
        frames=1,
        steps=steps,
        guidance_scale=1.0,
        seed=0,
    )


class Counter:
    """A model whose steps count; `gate` lets them through one by one, once it is held."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.previewed: list[int] = []
        self.no_preview = False
        self.fault: Callable[[list[str]], Exception | None] = lambda _: None
        self.gate = threading.Semaphore(10**6)
        self.at_gate = threading.Semaphore(0)

    def hold(self) -> None:
        self.gate = threading.Semaphore(0)

    def begin(self, request: DiffusionRequest) -> DiffusionState:
        return DiffusionState(
            request=request,
            generator=torch.Generator().manual_seed(request.seed),
            timesteps=torch.arange(request.steps),
            prompt=(torch.zeros(1),),
            negative=None,
            latents_BCTHW=torch.zeros(1, 1, 1, 1, request.width),
            scheduler=SimpleNamespace(remembers=[]),
        )

    def step(self, states: Sequence[DiffusionState]) -> None:
        self.at_gate.release()
        self.gate.acquire()
        names = [state.request.id for state in states]
        if error := self.fault(names):
            raise error
        self.batches.append(names)
        for state in states:
            state.latents_BCTHW = state.latents_BCTHW + 1
            state.scheduler.remembers.append(state.latents_BCTHW)
            state.index += 1

    def decode(self, state: DiffusionState) -> npt.NDArray[np.float32]:
        return np.full((1, 8, state.request.width, 3), state.latents_BCTHW.mean() / 255, np.float32)

    def preview(self, state: DiffusionState) -> Any:
        self.previewed.append(state.index)
        if self.no_preview:
            raise RuntimeError("it cannot be painted")
        return np.full((2, 2, 3), state.index, np.uint8)

    def shape(self, state: DiffusionState) -> Hashable:
        return state.request.width

    def cost(self, state: DiffusionState) -> int:
        return state.request.width


class Callers:
    """Requests made in threads of their own."""

    def __init__(self, model: Counter, max_requests: int = 8) -> None:
        self.model = model
        self.batcher = StepBatcher(model, max_requests=max_requests)
        self.ended: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []

    def ask(self, name: str, on_step: Callable[..., None] = lambda *_: None, **values: Any) -> None:
        def call() -> None:
            try:
                self.ended[name] = self.batcher.generate(request(name, **values), on_step)
            except BaseException as error:
                self.ended[name] = error

        self.threads.append(threading.Thread(target=call, daemon=True))
        self.threads[-1].start()

    def join(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        return self.ended


@pytest.fixture
def callers() -> Iterator[Callers]:
    found = Callers(Counter())
    yield found
    found.model.gate.release(10**6)
    found.batcher.close()


def entered(callers: Callers, count: int) -> None:
    """Wait until so many are under way, while the model is held in a step."""
    done = threading.Event()
    for _ in range(2000):
        if len(callers.batcher._running) == count:
            return
        done.wait(0.005)
    raise AssertionError(f"{len(callers.batcher._running)} are under way, not {count}")


def test_who_comes_later_joins_at_the_next_step_and_each_gets_its_own_clip(callers: Callers) -> None:
    callers.model.hold()
    callers.ask("a", steps=6)
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    callers.ask("b", steps=2)
    entered(callers, 2)
    callers.model.gate.release(100)
    ended = callers.join()
    assert (ended["a"][0, 0, 0, 0], ended["b"][0, 0, 0, 0]) == (6, 2)
    assert callers.model.batches[0] == ["a"]
    assert {"a", "b"} in [set(batch) for batch in callers.model.batches]
    assert sum(batch.count("b") for batch in callers.model.batches) == 2


def test_a_short_clip_overtakes_a_long_one_between_steps(callers: Callers) -> None:
    callers.model.hold()
    callers.ask("long", steps=20, width=64)
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    callers.ask("short", steps=6, width=8)
    entered(callers, 2)
    callers.model.gate.release(1000)
    callers.join()
    order = [batch[0] for batch in callers.model.batches]
    last_of_short = len(order) - 1 - order[::-1].index("short")
    assert order[:last_of_short].count("long") <= 2


def test_nobody_is_passed_over_for_ever(callers: Callers) -> None:
    callers.model.hold()
    callers.ask("long", steps=3, width=10_000)
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    callers.ask("short", steps=40, width=1)
    entered(callers, 2)
    callers.model.gate.release(1000)
    callers.join()
    order = [batch[0] for batch in callers.model.batches]
    assert order.index("long", 1) <= MAX_STEPS_PASSED_OVER + 2


def test_no_more_than_so_many_are_under_way() -> None:
    callers = Callers(Counter(), max_requests=2)
    for name in "abcde":
        callers.ask(name)
    ended = callers.join()
    assert all(isinstance(ended[name], np.ndarray) for name in "abcde")
    assert max(len(batch) for batch in callers.model.batches) <= 2
    callers.batcher.close()


def test_who_is_stopped_makes_no_further_step_and_the_others_go_on(callers: Callers) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, *_: object) -> None:
        if done == 2:
            raise StopError

    callers.ask("a", stop, steps=9)
    callers.ask("b", steps=5)
    ended = callers.join()
    assert isinstance(ended["a"], StopError)
    assert ended["b"][0, 0, 0, 0] == 5
    assert sum(batch.count("a") for batch in callers.model.batches) == 2


def test_a_fault_ends_whose_it_is_and_nobody_else(callers: Callers) -> None:
    callers.model.fault = lambda names: ValueError("bad") if "bad" in names else None
    callers.model.hold()
    callers.ask("good")
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    callers.ask("bad")
    entered(callers, 2)
    callers.model.gate.release(1000)
    ended = callers.join()
    assert isinstance(ended["bad"], ValueError)
    assert ended["good"][0, 0, 0, 0] == 4


def test_too_little_memory_for_a_batch_is_met_by_smaller_ones(callers: Callers) -> None:
    callers.model.fault = lambda names: torch.OutOfMemoryError("too much") if len(names) > 1 else None
    callers.model.hold()
    for name in "abc":
        callers.ask(name, steps=5)
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    entered(callers, 3)
    callers.model.gate.release(1000)
    ended = callers.join()
    assert [ended[name][0, 0, 0, 0] for name in "abc"] == [5, 5, 5]
    assert {len(batch) for batch in callers.model.batches} == {1}


def test_a_step_that_failed_half_way_is_made_again_from_where_it_began(callers: Callers) -> None:
    """Schedulers remember earlier outputs: one that had begun to step must not remember them twice."""
    real = callers.model.step
    states: dict[str, DiffusionState] = {}

    def half_way(given: Sequence[DiffusionState]) -> None:
        states.update({state.request.id: state for state in given})
        if len(given) > 1:
            for state in given:
                state.scheduler.remembers.append(None)
            raise torch.OutOfMemoryError("too much")
        real(given)

    callers.model.step = half_way  # type: ignore[method-assign]
    callers.model.hold()
    callers.ask("a", steps=5)
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    callers.ask("b", steps=5)
    entered(callers, 2)
    callers.model.gate.release(1000)
    callers.join()
    assert [len(states[name].scheduler.remembers) for name in "ab"] == [5, 5]
    assert None not in states["a"].scheduler.remembers


def test_a_dead_device_is_told_to_all_whose_step_it_was(callers: Callers) -> None:
    callers.model.fault = lambda _: torch.AcceleratorError("gone")
    callers.ask("a")
    callers.ask("b", width=16)
    ended = callers.join()
    assert all(isinstance(ended[name], torch.AcceleratorError) for name in "ab")


def test_a_fault_of_the_loop_itself_is_told_and_the_next_request_is_served(callers: Callers) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("our own fault")

    callers.model.cost = broken  # type: ignore[method-assign]
    callers.ask("a")
    assert isinstance(callers.join()["a"], RuntimeError)
    del callers.model.cost
    callers.ask("b")
    assert callers.join()["b"][0, 0, 0, 0] == 4


def test_closing_ends_what_is_under_way_and_what_comes_after(callers: Callers) -> None:
    callers.model.hold()
    callers.ask("a")
    assert callers.model.at_gate.acquire(timeout=DEADLINE_S)
    closer = threading.Thread(target=callers.batcher.close)
    closer.start()
    while not callers.batcher._closing:
        pass
    callers.model.gate.release(1)
    closer.join(DEADLINE_S)
    assert isinstance(callers.join()["a"], UnavailableError)
    callers.ask("b")
    assert isinstance(callers.join()["b"], UnavailableError)


def test_sixteen_clients_at_once_in_any_order_get_what_they_asked_for() -> None:
    callers = Callers(Counter(), max_requests=5)
    random = np.random.default_rng(0)
    wanted = {f"r{n}": (int(random.integers(1, 12)), int(random.choice([4, 8, 16]))) for n in range(16)}
    for name, (steps, width) in wanted.items():
        callers.ask(name, steps=steps, width=width)
    ended = callers.join()
    for name, (steps, width) in wanted.items():
        clip: Frames = ended[name]
        assert clip.shape == (1, 8, width, 3)
        assert clip[0, 0, 0, 0] == steps
    callers.batcher.close()


def test_a_frozen_request_goes_on_where_it_was(callers: Callers) -> None:
    kept: list[bytes] = []

    def keep(done: int, _: int, freeze: Any) -> None:
        if done == 3:
            kept.append(freeze().encode("me"))

    whole = callers.batcher.generate(request("a", steps=5), keep)
    seen: list[int] = []
    resumed = callers.batcher.generate(request("a", steps=5), lambda done, *_: seen.append(done), Resume(kept[0], "me"))
    assert seen == [3, 4, 5]
    assert (resumed == whole).all()
    with pytest.raises(ResumeError, match="another request"):
        callers.batcher.generate(request("a", steps=5), lambda *_: None, Resume(kept[0], "you"))


def test_previews_come_every_few_steps_and_one_that_fails_costs_nothing(
    callers: Callers, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    asked = dataclasses.replace(
        request("a", steps=7), preview_steps=2, on_preview=lambda picture: seen.append(int(picture[0, 0, 0]))
    )
    callers.batcher.generate(asked, lambda *_: None)
    assert seen == [2, 4, 6]
    callers.model.no_preview = True
    assert callers.batcher.generate(asked, lambda *_: None)[0, 0, 0, 0] == 7
    assert seen == [2, 4, 6]
    assert "a has no preview of step 6" in caplog.text
    callers.batcher.generate(request("b", steps=7), lambda *_: None)
    assert len(callers.model.previewed) == 6


def test_batch_sizes_are_tried_and_the_best_is_kept() -> None:
    costs = BatchCosts()
    seconds = {1: 1.0, 2: 1.2, 4: 1.6, 8: 4.0}
    tried = []
    for _ in range(12):
        size = costs.best("shape", 8)
        tried.append(size)
        costs.record("shape", size, seconds[size])
    assert tried[:4] == [1, 2, 4, 8]
    assert set(tried[4:]) == {4}
    assert costs.best("shape", 3) in (2, 3)
    assert costs.best("other", 8) == 1
    later = [costs.best("shape", 8) for _ in range(RETRY_STEPS)]
    assert sorted(later)[-2:] == [4, 8], "what was slow is tried again, rarely"


def test_a_size_that_once_was_slow_by_chance_is_found_again() -> None:
    costs = BatchCosts()
    costs.record("s", 1, 9.0)
    costs.record("s", 1, 1.0)
    assert costs.best("s", 2) == 2
    costs.record("s", 2, 1.1)
    assert costs.best("s", 2) == 2


def test_sizes_double_up_to_the_most() -> None:
    assert [sizes(most) for most in (1, 2, 3, 4, 6)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6]]
