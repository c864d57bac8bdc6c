"""Step caches: equal to Diffusers' own hooks where it has them, a request's own whatever it is batched with, and kept
by a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import cogvideox, hunyuan, ltx, request, wan

from tessera.diffusion import calibration as diffusion_calibration
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.request import DiffusionRequest, Resume
from tessera.diffusion.step_cache.policies import (
    FirstBlock,
    Magnitude,
    Polynomial,
    RowMemory,
    StepCache,
    StepCacheKind,
    StepCalibration,
)
from tessera.errors import InvalidRequestError
from tessera_video import overhead

STEPS = 10
CACHES = [StepCache("first_block", 0.14), StepCache("polynomial", 0.2), StepCache("magnitude", 0.12)]
CALIBRATION = StepCalibration(coefficients=[1.0, 0.0], least=0.0, most=1.0, ratios=[1.0, 1.02, 0.99, 1.01])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> FamilyModel:
    found = of(wan())
    found.step_calibration = diffusion_calibration.calibrate(found, request(steps=STEPS))
    return found


def of(pipe: Any) -> FamilyModel:
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe, torch.device("cpu"))


def asked(cache: StepCache | None, **values: Any) -> DiffusionRequest:
    return dataclasses.replace(request(steps=STEPS, **values), step_cache=cache)


def clip(model: FamilyModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


def rows_computed(model: FamilyModel, request: DiffusionRequest) -> int:
    """Rows that went through the last block of all experts."""
    rows: list[int] = []

    def count(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], __: object) -> None:
        rows.append(len(kwargs.get("hidden_states", args[0] if args else ())))

    handles = [one.blocks[-1].register_forward_hook(count, with_kwargs=True) for one in model.blocks.values()]
    clip(model, request)
    for handle in handles:
        handle.remove()
    return sum(rows)


def theirs(pipe: Any, request: DiffusionRequest) -> np.ndarray:
    made = pipe(
        prompt=request.prompt,
        width=request.width,
        height=request.height,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="np",
    )
    return made.frames[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Wan", "first_block"),
        ("Wan", "magnitude"),
        # Of two experts Diffusers counts the steps one by one, so its ratios are those of other steps.
        ("Wan, two experts", "first_block"),
        ("LTX", "first_block"),
        ("LTX", "magnitude"),
        ("CogVideoX", "first_block"),
        ("CogVideoX", "magnitude"),
    ],
)
def test_a_cached_clip_equals_that_of_diffusers_own_hook(name: str, kind: StepCacheKind) -> None:
    two = {"transformer_2": True, "boundary_ratio": 0.7}
    make = {"Wan": wan, "Wan, two experts": lambda: wan(**two), "LTX": ltx, "CogVideoX": cogvideox}[name]
    ratios = [1.0, *(1.0 + 0.02 * (-1) ** step for step in range(1, STEPS))]
    known = StepCalibration(coefficients=[1.0], least=0.0, most=1.0, ratios=ratios)
    threshold = 0.08
    model, pipe = of(make()), make()
    model.step_calibration = known
    # Diffusers decides for both halves of guidance at once in LTX and CogVideoX, we for each by itself.
    wanted = asked(StepCache(kind, threshold), guidance_scale=4.0 if name == "Wan" else 1.0)
    for expert in [pipe.transformer, getattr(pipe, "transformer_2", None)]:
        if expert is not None and kind == "first_block":
            expert.enable_cache(diffusers.FirstBlockCacheConfig(threshold=threshold))
        elif expert is not None:
            config = {"num_inference_steps": STEPS, "mag_ratios": ratios}
            expert.enable_cache(diffusers.MagCacheConfig(threshold=threshold, **config))
    made = clip(model, wanted)
    assert np.abs(made - theirs(pipe, wanted)).max() < 1e-4
    plain = dataclasses.replace(wanted, step_cache=None)
    assert rows_computed(model, wanted) < rows_computed(model, plain)
    assert np.abs(made - clip(model, plain)).max() > 0


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.kind)
def test_a_cached_request_skips_work_and_stays_near_the_computed_clip(model: FamilyModel, cache: StepCache) -> None:
    wanted, plain = asked(cache), asked(None)
    assert rows_computed(model, plain) == 2 * STEPS
    assert rows_computed(model, wanted) <= 2 * STEPS / 1.6
    error = float(np.square(clip(model, wanted) - clip(model, plain)).mean())
    assert 10 * np.log10(1 / error) > 30


def test_hunyuan_video_skips_blocks_too_and_equals_itself_whoever_shares_the_pass() -> None:
    """Diffusers' hooks do not know its blocks."""
    model, cache = of(hunyuan()), StepCache("first_block", 0.4)
    wanted, plain = asked(cache, frames=5), asked(None, frames=5)
    alone, whole = clip(model, wanted), clip(model, plain)
    assert rows_computed(model, wanted) <= rows_computed(model, plain) / 1.6
    error = float(np.square(alone - whole).mean())
    assert error > 0
    assert 10 * np.log10(1 / error) > 30
    states = [model.begin(wanted), model.begin(asked(None, frames=5, seed=2))]
    while running := [state for state in states if not state.done]:
        model.step(running)
    assert np.abs(model.decode(states[0]) - alone).max() < 1e-4


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.kind)
def test_who_shares_a_pass_changes_nothing_for_a_cached_request(model: FamilyModel, cache: StepCache) -> None:
    requests = [asked(cache), asked(None, seed=2), asked(cache, seed=3, prompt="a dog " * 9, guidance_scale=1.0)]
    requests += [asked(other, seed=4) for other in CACHES if other != cache]
    alone = [clip(model, each) for each in requests]
    states = [model.begin(requests[0])]
    for _ in range(3):
        model.step(states)
    states += [model.begin(each) for each in requests[1:]]
    while running := [state for state in states if not state.done]:
        model.step(running)
    for state, expected in zip(states, alone, strict=True):
        assert np.abs(model.decode(state) - expected).max() < 1e-4


@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.kind)
def test_a_cached_clip_resumed_from_any_step_is_the_same_to_the_bit(model: FamilyModel, cache: StepCache) -> None:
    batcher = StepBatcher(model, max_requests=1)
    kept: list[bytes] = []
    wanted = asked(cache)
    whole = batcher.generate(wanted, lambda *step: kept.append(step[2]().encode("this")))
    assert len(kept) == STEPS + 1
    for data in kept:
        assert (batcher.generate(wanted, lambda *_: None, Resume(data, "this")) == whole).all()
    batcher.close()


def test_what_one_expert_has_computed_is_not_taken_for_the_other() -> None:
    model = of(wan(transformer_2=True, boundary_ratio=0.7))
    state = model.begin(asked(StepCache("first_block", 1e9)))
    computed: list[object] = []
    for blocks in model.blocks.values():
        blocks.blocks[-1].register_forward_hook(lambda block, *_: computed.append(block))
    while not state.done:
        model.step([state])
    assert len(computed) == len(set(computed)) == 2


def test_a_step_made_again_after_a_fault_skips_as_if_there_had_been_none(model: FamilyModel) -> None:
    wanted = asked(CACHES[1])
    expected = (clip(model, wanted) * 255).round().astype(np.uint8)
    real, failed = model.step, []

    def once(states: Any) -> None:
        if len(states) > 1 and states[0].index == 4 and not failed:
            failed.append(1)
            states[0].memory["cache.prompt.sum"] = 99.0
            raise torch.OutOfMemoryError("too much")
        real(states)

    model.step = once  # type: ignore[method-assign]
    batcher = StepBatcher(model, max_requests=2)
    batcher.costs.best = lambda _, most: most  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as threads:
        clips = list(threads.map(lambda _: batcher.generate(wanted, lambda *_: None), range(2)))
    batcher.close()
    del model.step
    assert all(np.abs(made.astype(int) - expected).max() <= 1 for made in clips)


def test_caches_that_need_a_measured_model_are_refused_until_it_is_measured() -> None:
    model = of(wan())
    with pytest.raises(InvalidRequestError, match=r"tessera_video\.calibrate") as refused:
        model.begin(asked(CACHES[1]))
    assert refused.value.param == "step_cache"
    assert model.begin(asked(CACHES[0])).request.step_cache == CACHES[0]


def test_a_calibration_is_kept_beside_the_model_and_a_damaged_one_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert diffusion_calibration.read(tmp_path) is None
    path = diffusion_calibration.write(tmp_path, CALIBRATION)
    assert diffusion_calibration.read(tmp_path) == CALIBRATION
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:20])
    assert diffusion_calibration.read(tmp_path) is None
    assert "cannot be read" in caplog.text


def memory() -> RowMemory:
    return RowMemory({}, "prompt")


def decide(policy: Any, memory: RowMemory, signal: float) -> bool:
    """One step of a policy on a signal of one number. Whether it skips."""
    value = torch.tensor([signal])
    change = policy.change(memory, value)
    skipped: bool = policy.skips(memory, None if change is None else float(change))
    if not skipped:
        policy.computed(memory, value, torch.ones(1))
    return skipped


def test_the_first_block_is_compared_with_the_last_computed_step() -> None:
    kept, policy = memory(), FirstBlock(0.1)
    assert [decide(policy, kept, signal) for signal in (1.0, 1.05, 1.09, 1.2, 1.25)] == [0, 1, 1, 0, 1]


def test_the_polynomial_sums_changes_and_never_skips_the_ends() -> None:
    kept = memory()
    skipped = [decide(Polynomial(0.25, CALIBRATION, step, 6), kept, 1.1**step) for step in range(6)]
    assert skipped == [0, 1, 1, 0, 1, 0]


def test_changes_outside_what_was_measured_count_as_the_nearest_measured() -> None:
    steep = StepCalibration(coefficients=[100.0, 0.0], least=0.0, most=0.001, ratios=[1.0])
    kept = memory()
    assert [decide(Polynomial(0.25, steep, step, 9), kept, 2.0**step) for step in range(4)] == [0, 1, 1, 0]


def test_magnitudes_skip_at_most_three_in_a_row_and_none_of_the_first() -> None:
    still = StepCalibration(coefficients=[0.0], least=0.0, most=1.0, ratios=[1.0] * 10)
    kept = memory()
    skipped = [decide(Magnitude(0.1, still, step, 10), kept, 0.0) for step in range(10)]
    assert skipped == [0, 0, 1, 1, 1, 0, 1, 1, 1, 0]


@pytest.mark.slow
def test_overhead_says_what_of_a_step_is_outside_the_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    assert overhead.main(["--size", "64x64", "--frames", "5", "--steps", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["step_s"] > 0
    assert 0 < said["share"] < 1
