"""Schedulers and guidance: a directory's scheduler steps as in Diffusers' own pipeline, or is refused by its name."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import cogvideox, hunyuan, ltx, request, wan

from tessera.device.hardware import Device
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.request import DiffusionRequest, Resume
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.cards import read_card

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
MOST_DIFFERENCE = 1e-4
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
NOISE = {"prediction_type": "v_prediction", "timestep_spacing": "trailing", "rescale_betas_zero_snr": True}
OF_FLOWS: dict[str, Callable[[], Any]] = {
    "UniPC": lambda: diffusers.UniPCMultistepScheduler(**FLOW),
    "DPM-Solver++": lambda: diffusers.DPMSolverMultistepScheduler(algorithm_type="dpmsolver++", **FLOW),
    "DPM-Solver++ with noise": lambda: diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", **FLOW),
    "Euler with noise": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True),
    "Heun": lambda: diffusers.FlowMatchHeunDiscreteScheduler(shift=3.0),
    "LCM": lambda: diffusers.FlowMatchLCMScheduler(shift=3.0),
}
OF_NOISE: dict[str, Callable[[], Any]] = {
    "DDIM": lambda: diffusers.DDIMScheduler(clip_sample=False, **NOISE),
    "DPM-Solver++": lambda: diffusers.DPMSolverMultistepScheduler(prediction_type="v_prediction"),
    "LCM": lambda: diffusers.LCMScheduler(clip_sample=False, prediction_type="v_prediction"),
}
TWO_EXPERTS = {"transformer_2": True, "boundary_ratio": 0.7}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(pipe: Any) -> FamilyModel:
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe, CPU.place)


def ours(model: FamilyModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


def theirs(pipe: Any, request: DiffusionRequest, **more: Any) -> np.ndarray:
    """Diffusers' own, its scheduler told to draw noise from the request's generator, which not all pipelines do."""
    generator = torch.Generator().manual_seed(request.seed)
    draws = "generator" in inspect.signature(type(pipe.scheduler).step).parameters
    if draws and not hasattr(pipe, "prepare_extra_step_kwargs"):
        step = type(pipe.scheduler).step.__get__(pipe.scheduler)
        pipe.scheduler.step = functools.partial(step, generator=generator)
    if "guider" in pipe.components:
        pipe.guider = pipe.guider.new(guidance_scale=request.guidance_scale)
    else:
        more["guidance_scale"] = request.guidance_scale
    made = pipe(
        prompt=request.prompt,
        width=request.width,
        height=request.height,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        generator=generator,
        output_type="np",
        **more,
    )
    return made.frames[0][: request.frames]


def with_scheduler(pipe: Any, scheduler: Any) -> Any:
    pipe.scheduler = scheduler
    return pipe


@pytest.mark.parametrize("name", OF_FLOWS)
def test_a_few_steps_of_any_flow_scheduler_equal_diffusers_and_resume_to_the_bit(name: str) -> None:
    model = of(with_scheduler(wan(), OF_FLOWS[name]()))
    wanted = request(steps=3, frames=5)
    assert np.abs(ours(model, wanted) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE
    batcher = StepBatcher(model, max_requests=1)
    kept: list[bytes] = []
    whole = batcher.generate(wanted, lambda *step: kept.append(step[2]().encode("this")))
    again = batcher.generate(wanted, lambda *_: None, Resume(kept[2], "this"))
    batcher.close()
    assert (again == whole).all()


@pytest.mark.parametrize("name", OF_NOISE)
def test_a_few_steps_of_schedulers_of_noise_equal_diffusers(name: str) -> None:
    model = of(with_scheduler(cogvideox(), OF_NOISE[name]()))
    wanted = request(steps=3, frames=5)
    assert np.abs(ours(model, wanted) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.parametrize("make", [ltx, hunyuan])
def test_noise_of_each_step_is_drawn_in_the_order_of_diffusers_in_other_families(make: Callable[[], Any]) -> None:
    model = of(with_scheduler(make(), diffusers.FlowMatchLCMScheduler(shift=3.0)))
    wanted = request(steps=2, frames=5, guidance_scale=1.0)
    assert np.abs(ours(model, wanted) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.parametrize(
    ("make", "scheduler", "reason"),
    [
        (wan, diffusers.EulerDiscreteScheduler, "predict noise"),
        (cogvideox, diffusers.FlowMatchEulerDiscreteScheduler, "predict a flow"),
        (ltx, lambda: diffusers.DPMSolverMultistepScheduler(**FLOW), "cannot be stepped"),
        (wan, lambda: diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), "mu"),
    ],
)
def test_a_scheduler_that_cannot_step_the_model_is_refused_by_its_name(
    make: Callable[[], Any], scheduler: Callable[[], Any], reason: str
) -> None:
    chosen = scheduler()
    with pytest.raises(ModelLoadError, match=reason) as refused:
        of(with_scheduler(make(), chosen))
    assert type(chosen).__name__ in refused.value.message
    assert "scheduler_config.json" in refused.value.message


@pytest.mark.slow
def test_a_directory_is_stepped_by_the_scheduler_that_it_names(tmp_path: Path) -> None:
    pipe = with_scheduler(wan(), diffusers.FlowMatchLCMScheduler(shift=3.0))
    pipe.save_pretrained(str(tmp_path))
    model = load(tmp_path, CPU)
    assert isinstance(model, FamilyModel)
    wanted = request(steps=2, frames=5, guidance_scale=1.0)
    assert np.abs(ours(model, wanted) - theirs(pipe, wanted)).max() < MOST_DIFFERENCE
    index = json.loads((tmp_path / "model_index.json").read_text())
    diffusers.DDIMScheduler().save_pretrained(str(tmp_path / "scheduler"))
    for name in ("DDIMScheduler", "SchedulerOfTomorrow"):
        (tmp_path / "model_index.json").write_text(json.dumps({**index, "scheduler": ["diffusers", name]}))
        with pytest.raises(ModelLoadError, match=name):
            load(tmp_path, CPU)


@pytest.mark.parametrize(
    ("make", "steps", "reason"),
    [
        (ltx, 1, "FlowMatchEulerDiscreteScheduler has no timesteps"),
        (lambda: with_scheduler(cogvideox(), OF_NOISE["LCM"]()), 80, "LCMScheduler cannot make"),
    ],
)
def test_steps_that_a_scheduler_cannot_make_are_refused(make: Callable[[], Any], steps: int, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        of(make()).begin(request(steps=steps))
    assert refused.value.param == "steps"


def test_without_guidance_nothing_is_done_for_the_negative_prompt() -> None:
    model = of(wan())
    encoded, rows = [], []
    model.pipe.text_encoder.register_forward_hook(lambda *_: encoded.append(1))
    model.pipe.transformer.register_forward_pre_hook(
        lambda _, __, given: rows.append(len(given["hidden_states"])), with_kwargs=True
    )
    ours(model, request(steps=4, frames=5, guidance_scale=1.0, negative_prompt="a dog"))
    assert (encoded, rows) == ([1], [1, 1, 1, 1])


@pytest.mark.parametrize(("first", "second"), [(5.0, 2.0), (3.0, 1.0), (5.0, None), (1.0, 1.0)])
def test_two_guidance_scales_equal_diffusers(first: float, second: float | None) -> None:
    model = of(wan(**TWO_EXPERTS))
    wanted = request(guidance_scale=first, guidance_scale_2=second, frames=5)
    clip = ours(model, wanted)
    assert np.abs(clip - theirs(model.pipe, wanted, guidance_scale_2=second)).max() < MOST_DIFFERENCE
    if second == 2.0:
        assert np.abs(clip - ours(model, request(guidance_scale=first, frames=5))).max() > MOST_DIFFERENCE


def test_requests_with_other_scales_share_a_pass_and_an_expert_with_scale_1_has_one_row_each() -> None:
    model = of(wan(**TWO_EXPERTS))
    asked = [
        request(frames=5, guidance_scale_2=1.0),
        request(frames=5, guidance_scale=3.0, guidance_scale_2=2.0, seed=2),
    ]
    alone = [ours(model, each) for each in asked]
    rows: list[int] = []
    for expert in model.expert_components():
        expert.register_forward_pre_hook(
            lambda _, __, given: rows.append(len(given["hidden_states"])), with_kwargs=True
        )
    states = [model.begin(each) for each in asked]
    while not states[0].done:
        model.step(states)
    assert sorted(set(rows)) == [3, 4]
    assert len(rows) == asked[0].steps
    for state, expected in zip(states, alone, strict=True):
        assert np.abs(model.decode(state) - expected).max() < MOST_DIFFERENCE


def test_a_clip_with_two_scales_goes_through_the_batcher_to_its_last_step() -> None:
    model = of(wan(**TWO_EXPERTS))
    wanted = request(frames=5, guidance_scale_2=2.0)
    batcher = StepBatcher(model, max_requests=1)
    frames = batcher.generate(wanted, lambda *_: None)
    batcher.close()
    assert np.abs(frames - (ours(model, wanted) * 255).round()).max() <= 1


def test_a_second_scale_is_refused_where_it_would_do_nothing() -> None:
    for model, wanted in [
        (of(wan()), request(guidance_scale_2=2.0)),
        (of(wan(**TWO_EXPERTS)), request(guidance_scale=1.0, guidance_scale_2=2.0)),
    ]:
        with pytest.raises(InvalidRequestError, match="guidance_scale_2") as refused:
            model.begin(wanted)
        assert refused.value.param == "guidance_scale_2"


def test_a_card_says_how_many_experts_share_the_steps(tmp_path: Path) -> None:
    for experts, pipe in ((1, wan()), (2, wan(**TWO_EXPERTS))):
        directory = tmp_path / str(experts)
        pipe.save_pretrained(str(directory))
        assert read_card(directory).experts == experts
