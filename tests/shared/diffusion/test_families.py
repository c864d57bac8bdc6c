"""Every family of video models in our step loop: equal to Diffusers' own pipeline, alone, batched and resumed."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.shared.diffusion.tiny_models import FAMILY_KINDS, cogvideox, hunyuan, ltx, mochi, picture, request

from tessera.device.hardware import Device
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import FAMILIES, family_of
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.request import DiffusionRequest, Resume
from tessera.diffusion.whole_pipeline import PipelineModel
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.cards import read_card

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
MOST_DIFFERENCE = 1e-4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILY_KINDS)
def model(request: pytest.FixtureRequest) -> FamilyModel:
    pipe = FAMILY_KINDS[request.param]()
    family = family_of(type(pipe).__name__)
    assert family is not None
    return family(pipe, CPU.place)


def asked(model: FamilyModel, **values: Any) -> DiffusionRequest:
    """What the model can be asked for: with a first frame where it needs one."""
    made = request(**values)
    return dataclasses.replace(made, image=picture()) if model.image_input == "required" else made


def ours(model: FamilyModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


def theirs(pipe: Any, request: DiffusionRequest) -> np.ndarray:
    given = {
        "image": request.image,
        "frame_rate": request.fps,
        "width": request.width,
        "height": request.height,
        "guidance_scale": request.guidance_scale,
    }
    known = inspect.signature(type(pipe).__call__).parameters
    if "guider" in pipe.components:
        pipe.guider = pipe.guider.new(guidance_scale=request.guidance_scale)
    made = pipe(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="np",
        **{name: value for name, value in given.items() if name in known and value is not None},
    )
    return made.frames[0][: request.frames]


@pytest.mark.slow
@pytest.mark.parametrize("values", [{}, {"guidance_scale": 1.0, "fps": 12.0}], ids=["guided", "unguided"])
def test_a_clip_equals_that_of_diffusers_own_pipeline(model: FamilyModel, values: dict[str, Any]) -> None:
    wanted = asked(model, negative_prompt="a dog", **values)
    clip = ours(model, wanted)
    assert clip.shape == (9, 32, 32, 3)
    assert np.abs(clip - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


def test_clips_of_any_length_equal_diffusers_too(model: FamilyModel) -> None:
    wanted = asked(model, frames=5, steps=2)
    assert np.abs(ours(model, wanted) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.slow
def test_requests_at_different_steps_share_passes_and_equal_diffusers(model: FamilyModel) -> None:
    requests = [asked(model), asked(model, seed=2, prompt="a dog", steps=3), asked(model, seed=3, guidance_scale=1.0)]
    states = [model.begin(requests[0])]
    model.step(states)
    states += [model.begin(other) for other in requests[1:]]
    passes: list[int] = []
    handle = model.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    model.step(states)
    handle.remove()
    assert len(passes) == 1
    while running := [state for state in states if not state.done]:
        model.step(running)
    for state, wanted in zip(states, requests, strict=True):
        assert np.abs(model.decode(state) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.slow
def test_a_clip_resumed_from_any_step_is_the_same_to_the_bit(model: FamilyModel) -> None:
    batcher = StepBatcher(model, max_requests=1)
    kept: dict[int, bytes] = {}

    def keep(done: int, _: int, freeze: Any) -> None:
        kept[done] = freeze().encode("this")

    wanted = asked(model)
    whole = batcher.generate(wanted, keep)
    assert sorted(kept) == [0, 1, 2, 3, 4]
    for data in kept.values():
        assert (batcher.generate(wanted, lambda *_: None, Resume(data, "this")) == whole).all()
    batcher.close()


def test_each_step_is_told_and_raising_there_ends_the_work(model: FamilyModel) -> None:
    class EnoughError(Exception):
        pass

    seen: list[int] = []

    def stop(done: int, *_: object) -> None:
        seen.append(done)
        if done == 2:
            raise EnoughError

    batcher = StepBatcher(model, max_requests=1)
    with pytest.raises(EnoughError):
        batcher.generate(asked(model), stop)
    batcher.close()
    assert seen == [0, 1, 2]


def test_a_prompt_is_encoded_once(model: FamilyModel) -> None:
    model.begin(asked(model))  # with the negative prompt, which all have
    calls: list[int] = []
    handle = model.pipe.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    model.begin(asked(model, prompt="a prompt of its own", seed=4))
    model.begin(asked(model, prompt="a prompt of its own", seed=5))
    handle.remove()
    assert len(calls) == 1


def test_an_image_is_refused_or_missed_where_the_family_takes_none_or_needs_one(model: FamilyModel) -> None:
    if model.image_input == "optional":
        assert model.begin(request(image=picture())).inputs
        return
    wrong = request(image=picture()) if model.image_input == "none" else request()
    with pytest.raises(InvalidRequestError, match="image"):
        model.begin(wrong)


def test_weights_of_ltx_for_text_take_a_first_frame_as_diffusers_other_pipeline_does() -> None:
    both, image_only = (family_of(type(pipe).__name__) for pipe in (ltx(), FAMILY_KINDS["LTX from an image"]()))
    assert both is not None
    assert image_only is both
    wanted = request(image=picture())
    clip = ours(both(ltx(), CPU.place), wanted)
    assert np.abs(clip - theirs(FAMILY_KINDS["LTX from an image"](), wanted)).max() < MOST_DIFFERENCE


def test_a_clip_is_as_long_as_asked_for_where_the_decoder_makes_more() -> None:
    """CogVideoX decodes latent frames in pairs: of two it makes eight frames."""
    family = family_of("CogVideoXPipeline")
    assert family is not None
    model = family(cogvideox(newer=True), CPU.place)
    assert [ours(model, request(frames=frames, steps=1)).shape[0] for frames in (1, 5, 9)] == [1, 5, 9]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["LTX", "CogVideoX 1.5", "HunyuanVideo 1.5"])
def test_a_directory_is_stepped_by_the_family_that_it_names(name: str, tmp_path: Path) -> None:
    pipe = FAMILY_KINDS[name]()
    pipe.save_pretrained(str(tmp_path))
    model = load(tmp_path, CPU)
    assert isinstance(model, FamilyModel)
    card = read_card(tmp_path)
    assert (card.image_input, card.frames_multiple) == (model.image_input, 4 if name.startswith("Hunyuan") else 8)
    assert card.guidance_scale == (6.0 if name.startswith("Hunyuan") else None)
    wanted = request()
    reloaded = type(pipe).from_pretrained(str(tmp_path))
    reloaded.set_progress_bar_config(disable=True)
    assert np.abs(ours(model, wanted) - theirs(reloaded, wanted)).max() < MOST_DIFFERENCE


def test_a_pipeline_without_a_loop_of_ours_runs_whole_says_so_and_stops_at_a_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mochi().save_pretrained(str(tmp_path))
    model = load(tmp_path, CPU)
    assert isinstance(model, PipelineModel)
    assert "MochiPipeline has no step loop of ours" in caplog.text
    seen: list[int] = []
    wanted = request(frames=7, steps=2, guidance_scale=3.0, negative_prompt="bad")
    frames = model.generate(wanted, lambda done, *_: seen.append(done))
    assert seen == [0, 1, 2]
    assert frames.shape == (7, 32, 32, 3)

    def stop(done: int, *_: object) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.generate(wanted, stop)
    with pytest.raises(InvalidRequestError, match="image"):
        model.generate(request(image=picture()), lambda *_: None)


def test_a_pipeline_that_makes_no_videos_is_refused_with_those_that_do(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "MakeWithoutUsPipeline"}')
    with pytest.raises(ModelLoadError) as refused:
        load(tmp_path, CPU)
    assert all(name in refused.value.message for name in FAMILIES)


def test_a_mean_flow_model_is_told_where_a_step_ends() -> None:
    kind = diffusers.HunyuanVideo15ImageToVideoPipeline
    family = family_of(kind.__name__)
    assert family is not None
    model = family(hunyuan(kind, mean_flow=True), CPU.place)
    wanted = asked(model, frames=5, steps=3)
    assert np.abs(ours(model, wanted) - theirs(model.pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.parametrize(
    ("guider", "reason"),
    [
        (diffusers.ClassifierFreeGuidance(guidance_rescale=0.5), "guidance_rescale=0.5"),
        (diffusers.AdaptiveProjectedGuidance(), "AdaptiveProjectedGuidance"),
    ],
)
def test_a_guider_that_does_more_than_scale_is_refused(guider: Any, reason: str) -> None:
    pipe = hunyuan()
    pipe.guider = guider
    family = family_of(type(pipe).__name__)
    assert family is not None
    with pytest.raises(ModelLoadError, match=reason):
        family(pipe, CPU.place)
