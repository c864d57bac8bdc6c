"""Memory of clips: estimated before they begin, reserved in order, and too little of it ends only one clip."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import FAMILY_KINDS, request, wan

from tessera.device import hardware as device
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.request import DiffusionRequest
from tessera.diffusion.step_cache.policies import StepCache
from tessera.errors import InvalidRequestError
from tessera.hub.clip_memory import ClipMemoryBudget, Shapes, estimate

DEADLINE_S = 60.0
WAN_14B = Shapes(
    frames_multiple=4,
    spatial=8,
    patch=4,
    size_multiple=16,
    channels=16,
    width=5120,
    hidden=13824,
    decoder_width=96,
    decoded_at_once=1,
    bytes_each=2,
)
LARGE = request(width=832, height=480, frames=81)
GIB = 2**30


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(pipe: Any) -> FamilyModel:
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe, torch.device("cpu"))


def test_an_estimate_grows_with_what_is_asked_for() -> None:
    known = estimate(LARGE, WAN_14B)
    assert 8 * GIB < known < 16 * GIB
    for more in ({"frames": 85}, {"width": 848}, {"height": 496}, {"step_cache": StepCache("first_block", 0.1)}):
        assert estimate(dataclasses.replace(LARGE, **more), WAN_14B) > known
    assert estimate(dataclasses.replace(LARGE, guidance_scale=1.0), WAN_14B) < known


@pytest.mark.parametrize("name", ["LTX", "CogVideoX 1.0", "CogVideoX 1.5", "HunyuanVideo 1.5"])
def test_every_family_has_an_estimate(name: str) -> None:
    shapes = of(FAMILY_KINDS[name]()).shapes
    assert 0 < estimate(request(frames=9), shapes) < estimate(request(frames=17, width=64), shapes) < GIB


@pytest.mark.parametrize("gib", [0.3, 1, 3, 6])
def test_a_clip_that_never_fits_is_refused_with_the_nearest_that_do(gib: float) -> None:
    capacity = int(gib * GIB)
    frames, size = ClipMemoryBudget(capacity).nearest(LARGE, WAN_14B)
    with (
        pytest.raises(InvalidRequestError) as refused,
        ClipMemoryBudget(capacity).hold(LARGE, WAN_14B, lambda: None),
    ):
        pass
    assert (refused.value.own_code, refused.value.retryable) == ("too_large", False)
    if frames is not None:
        assert f"at most {frames} frames" in refused.value.message
        assert estimate(dataclasses.replace(LARGE, frames=frames), WAN_14B) <= capacity
        assert estimate(dataclasses.replace(LARGE, frames=frames + 4), WAN_14B) > capacity
    if size is not None:
        assert f"{size[0]}x{size[1]}" in refused.value.message
        assert estimate(dataclasses.replace(LARGE, width=size[0], height=size[1]), WAN_14B) <= capacity
        assert size[0] % 16 == size[1] % 16 == 0
        assert abs(size[0] / size[1] - 832 / 480) < 0.5
    assert frames or size


def test_a_clip_waits_until_others_have_left_its_room_and_none_slips_in_before_it() -> None:
    small = dataclasses.replace(LARGE, frames=21)
    room = ClipMemoryBudget(estimate(LARGE, WAN_14B))
    order: list[str] = []

    def hold(name: str, asked: DiffusionRequest) -> None:
        with room.hold(asked, WAN_14B, lambda: None):
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        with room.hold(small, WAN_14B, lambda: None):
            large = threads.submit(hold, "large", LARGE)
            while len(room._queue) != 1:
                pass
            later = threads.submit(hold, "later", small)
            while len(room._queue) != 2:
                pass
            assert order == []
        large.result(DEADLINE_S)
        later.result(DEADLINE_S)
    assert order == ["large", "later"]
    assert (room._taken, room._queue) == (0, [])


def test_who_is_stopped_while_it_waits_leaves_the_line() -> None:
    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    room = ClipMemoryBudget(estimate(LARGE, WAN_14B))
    with room.hold(LARGE, WAN_14B, lambda: None), pytest.raises(StopError), room.hold(LARGE, WAN_14B, stop):
        pass
    assert (room._taken, room._queue) == (0, [])


@pytest.mark.parametrize("where", ["begin", "step", "decode"])
def test_too_little_memory_ends_one_clip_and_no_other(where: str) -> None:
    """The allocator itself fails: of a CPU, which says it with a plain RuntimeError."""
    model = of(wan())
    requests = [request(id="good"), request(id="bad", seed=2, frames=5 if where == "step" else 9)]
    real, together = getattr(model, where), threading.Barrier(2, timeout=DEADLINE_S)

    def full(given: Any) -> Any:
        names = [each.request.id for each in given] if where == "step" else [getattr(given, "id", None)]
        if "bad" in names or getattr(getattr(given, "request", None), "id", None) == "bad":
            torch.empty(1 << 50, dtype=torch.uint8)
        return real(given)

    setattr(model, where, full)
    batcher = StepBatcher(model, max_requests=2, memory=ClipMemoryBudget(GIB))
    batcher.costs.best = lambda _, most: most  # type: ignore[method-assign]

    def both(done: int, *_: object) -> None:
        if done == 0 and where != "begin":
            together.wait()

    with ThreadPoolExecutor(2) as threads:
        good, bad = (threads.submit(batcher.generate, each, both) for each in requests)
        with pytest.raises(torch.OutOfMemoryError):
            bad.result(DEADLINE_S)
        made = good.result(DEADLINE_S)
    delattr(model, where)
    assert batcher.memory is not None
    assert batcher.memory._taken == 0
    again = batcher.generate(requests[0], lambda *_: None)
    batcher.close()
    assert np.abs(made.astype(int) - again.astype(int)).max() <= 1


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "CONTROL_GROUP", tmp_path)
    cpu = torch.device("cpu")
    whole = device.free_bytes(cpu)
    assert whole > 2**20
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert device.free_bytes(cpu) == 2_000_000
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 300000\nactive_file 50000\n")
    assert device.free_bytes(cpu) == 2_350_000
    (tmp_path / "memory.max").write_text("max\n")
    assert device.free_bytes(cpu) > 2**20
