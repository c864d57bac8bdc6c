"""Diffusion: our step loop equals Diffusers' own pipelines, batched or not; pipelines load safely or say why not."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from tests.shared.diffusion.random_pipeline import build
from transformers import (
    ByT5Tokenizer,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    UMT5Config,
    UMT5EncoderModel,
)

from tessera.device.hardware import Device
from tessera.diffusion.batcher import StepBatcher
from tessera.diffusion.checkpoint import freeze, restore
from tessera.diffusion.families.wan.model import WanModel
from tessera.diffusion.loading.pipeline import load
from tessera.diffusion.prompt_cache import PromptCache
from tessera.diffusion.request import DiffusionRequest, Resume, ResumeError
from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.hub.cards import read_card

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
SIZE = {"width": 32, "height": 32}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("starter")
    build(directory, lambda _: None)
    return directory


@pytest.fixture(scope="module")
def wan(starter: Path) -> WanModel:
    model = load(starter, CPU)
    assert isinstance(model, WanModel)
    return model


def _request(**values: Any) -> DiffusionRequest:
    defaults = {"id": "r", "prompt": "a cat", "negative_prompt": "", "frames": 5, "steps": 4, "guidance_scale": 5.0}
    return DiffusionRequest(**{**defaults, **SIZE, "seed": 1, **values})


def _ours(model: WanModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


def _theirs(model: WanModel, request: DiffusionRequest, **extra: Any) -> np.ndarray:
    made = model.pipe(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        width=request.width,
        height=request.height,
        num_frames=request.frames,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        generator=torch.Generator().manual_seed(request.seed),
        output_type="np",
        **extra,
    )
    return made.frames[0]


def _wan_parts(*, channels: int = 16, image_dim: int | None = None) -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "tokenizer": ByT5Tokenizer(),
        "text_encoder": UMT5EncoderModel(
            UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        ).eval(),
        "vae": diffusers.AutoencoderKLWan(
            base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ).eval(),
        "scheduler": diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
        ),
        "transformer": _transformer(channels, image_dim),
    }


def _transformer(channels: int = 16, image_dim: int | None = None) -> Any:
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=channels,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
        image_dim=image_dim,
        added_kv_proj_dim=None if image_dim is None else 24,
    ).eval()


@pytest.mark.parametrize("guidance_scale", [1.0, 5.0])
@pytest.mark.parametrize("negative_prompt", ["", "a dog"])
def test_text_to_video_equals_diffusers(wan: WanModel, guidance_scale: float, negative_prompt: str) -> None:
    request = _request(guidance_scale=guidance_scale, negative_prompt=negative_prompt)
    assert np.abs(_ours(wan, request) - _theirs(wan, request)).max() < 1e-4


@pytest.mark.parametrize("scheduler", ["FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler"])
def test_two_experts_equal_diffusers(scheduler: str) -> None:
    parts = _wan_parts()
    if scheduler == "FlowMatchEulerDiscreteScheduler":
        parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = diffusers.WanPipeline(**parts, transformer_2=_transformer(), boundary_ratio=0.875)
    model = WanModel(pipe, CPU.place)
    request = _request()
    assert np.abs(_ours(model, request) - _theirs(model, request)).max() < 1e-4


def test_masked_steps_equal_diffusers() -> None:
    model = WanModel(diffusers.WanPipeline(**_wan_parts(), expand_timesteps=True), CPU.place)
    request = _request()
    assert np.abs(_ours(model, request) - _theirs(model, request)).max() < 1e-4


@pytest.mark.parametrize("kind", ["wan2.1 with image features", "wan2.2 with channels", "wan2.2 masked"])
def test_image_to_video_equals_diffusers(kind: str) -> None:
    masked = kind == "wan2.2 masked"
    features = kind == "wan2.1 with image features"
    parts = _wan_parts(channels=16 if masked else 36, image_dim=4 if features else None)
    if features:
        parts["image_encoder"] = CLIPVisionModel(
            CLIPVisionConfig(
                hidden_size=4,
                projection_dim=4,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=32,
                intermediate_size=16,
                patch_size=1,
            )
        ).eval()
        parts["image_processor"] = CLIPImageProcessorPil(crop_size=32, size=32)
    pipe = diffusers.WanImageToVideoPipeline(**parts, expand_timesteps=masked)
    model = WanModel(pipe, CPU.place)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    request = _request(image=image)
    assert np.abs(_ours(model, request) - _theirs(model, request, image=image)).max() < 1e-4
    with pytest.raises(InvalidRequestError, match="image"):
        model.begin(_request())


def _masked() -> WanModel:
    """Wan 2.2's small model: one set of weights for text to video and image to video."""
    return WanModel(diffusers.WanPipeline(**_wan_parts(), expand_timesteps=True), CPU.place)


def _picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize("guidance_scale", [1.0, 5.0])
def test_a_text_model_with_masked_steps_takes_a_first_frame_as_diffusers_other_pipeline_does(
    guidance_scale: float,
) -> None:
    model = _masked()
    theirs = WanModel(diffusers.WanImageToVideoPipeline(**_wan_parts(), expand_timesteps=True), CPU.place)
    request = _request(image=_picture(), guidance_scale=guidance_scale)
    clip = _ours(model, request)
    assert np.abs(clip - _theirs(theirs, request, image=request.image)).max() < 1e-4
    assert np.abs(clip - _ours(model, _request(guidance_scale=guidance_scale))).max() > 0.01


def test_clips_with_and_without_a_first_frame_share_a_forward_pass_and_equal_single_runs() -> None:
    model = _masked()
    requests = [_request(image=_picture()), _request(seed=2)]
    alone = [_ours(model, request) for request in requests]
    states = [model.begin(request) for request in requests]
    passes = []
    model.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    while running := [state for state in states if not state.done]:
        model.step(running)
    assert len(passes) == 4
    for state, expected in zip(states, alone, strict=True):
        assert np.abs(model.decode(state) - expected).max() < 1e-4


def test_a_text_model_without_masked_steps_refuses_a_first_frame(wan: WanModel) -> None:
    with pytest.raises(InvalidRequestError, match="takes no image"):
        wan.begin(_request(image=_picture()))


def test_requests_at_different_steps_share_a_forward_pass_and_equal_single_runs(wan: WanModel) -> None:
    requests = [
        _request(seed=1),
        _request(seed=2, prompt="a dog", steps=3),
        _request(seed=3, guidance_scale=1.0),
        _request(seed=4, frames=9),
    ]
    alone = [_ours(wan, request) for request in requests]
    states = [wan.begin(requests[0])]
    wan.step(states)
    states += [wan.begin(request) for request in requests[1:]]
    passes = []
    handle = wan.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    wan.step(states)
    handle.remove()
    assert len(passes) == 2  # one per shape
    while running := [state for state in states if not state.done]:
        wan.step(running)
    for state, expected in zip(states, alone, strict=True):
        assert np.abs(wan.decode(state) - expected).max() < 1e-4


@pytest.mark.slow
def test_prompts_of_any_length_share_a_forward_pass_and_equal_diffusers(wan: WanModel) -> None:
    """Padding is not computed: of each prompt as much as the longest of its pass needs, down to none."""
    lengths = (1, 13, 14, 16, 300, 510, 511, 700)  # a token a letter, and one that ends; 512 are read
    requests = [_request(seed=length, prompt="cat " * (length // 4) + "a" * (length % 4)) for length in lengths]
    expected = [_theirs(wan, request) for request in requests]
    states = [wan.begin(request) for request in requests]
    seen: list[int] = []

    def note(_: object, __: object, given: dict[str, Any]) -> None:
        seen.append(given["encoder_hidden_states"].shape[1])

    handle = wan.pipe.transformer.register_forward_pre_hook(note, with_kwargs=True)
    for together in (states[:3], states[3:]):
        while not together[0].done:
            wan.step(together)
    handle.remove()
    assert seen == [16] * 4 + [512] * 4, "four steps of the short ones, in tokens, and four of the long ones"
    for state, clip in zip(states, expected, strict=True):
        assert np.abs(wan.decode(state) - clip).max() < 1e-4


def test_a_prompt_is_encoded_once(starter: Path) -> None:
    model = load(starter, CPU)
    assert isinstance(model, WanModel)
    calls = []
    model.pipe.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    model.begin(_request())
    assert len(calls) == 2
    model.begin(_request(seed=2))
    assert len(calls) == 2


def test_the_prompt_cache_forgets_what_was_used_longest_ago() -> None:
    cache = PromptCache(capacity=2)
    for text in ("a", "b"):
        cache.put(text, (torch.zeros(1),))
    assert cache.get("a") is not None
    cache.put("c", (torch.zeros(1),))
    assert cache.get("b") is None
    assert cache.get("a") is not None


def test_every_step_is_reported_and_raising_there_stops_the_work(wan: WanModel) -> None:
    class EnoughError(Exception):
        pass

    batcher = StepBatcher(wan, max_requests=2)
    seen: list[tuple[int, int]] = []
    frames = batcher.generate(_request(), lambda done, total, _: seen.append((done, total)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert (frames.dtype, frames.shape) == (np.uint8, (5, 32, 32, 3))

    passes: list[int] = []
    handle = wan.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))

    def stop(done: int, *_: object) -> None:
        if done == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        batcher.generate(_request(), stop)
    batcher.close()
    handle.remove()
    assert len(passes) == 2


def test_a_seed_gives_the_same_clip_and_another_one_another(wan: WanModel) -> None:
    first, again, other = (_ours(wan, _request(seed=seed)) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("scheduler", ["UniPC", "DPM", "Euler"])
def test_a_clip_resumed_from_any_step_is_the_same_to_the_bit(scheduler: str) -> None:
    parts = _wan_parts()
    if scheduler == "Euler":
        parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    elif scheduler == "DPM":
        parts["scheduler"] = diffusers.DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        )
    batcher = StepBatcher(WanModel(diffusers.WanPipeline(**parts), CPU.place), max_requests=1)
    kept: dict[int, bytes] = {}

    def keep(done: int, _: int, freeze: Any) -> None:
        kept[done] = freeze().encode("this")

    request = _request(steps=6)
    whole = batcher.generate(request, keep)
    assert sorted(kept) == list(range(7))
    for done, data in kept.items():
        seen: list[int] = []
        again = batcher.generate(request, lambda index, *_, seen=seen: seen.append(index), Resume(data, "this"))
        assert seen == list(range(done, 7))
        assert (again == whole).all()
    batcher.close()


def test_a_resumed_clip_of_a_first_frame_is_the_same_to_the_bit() -> None:
    pipe = diffusers.WanImageToVideoPipeline(**_wan_parts(), expand_timesteps=True)
    batcher = StepBatcher(WanModel(pipe, CPU.place), max_requests=1)
    request = _request(image=Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)))
    kept: dict[int, bytes] = {}

    def keep(done: int, _: int, freeze: Any) -> None:
        kept[done] = freeze().encode("this")

    whole = batcher.generate(request, keep)
    assert (batcher.generate(request, lambda *_: None, Resume(kept[2], "this")) == whole).all()
    batcher.close()


@pytest.mark.parametrize("damage", ["cut", "a bit", "rubbish", "empty", "other steps"])
def test_a_damaged_checkpoint_is_refused_and_says_why(wan: WanModel, damage: str) -> None:
    state = wan.begin(_request())
    wan.step([state])
    data = freeze(state).encode("this")
    bad = {
        "cut": data[:-7],
        "a bit": data[:-1] + bytes([data[-1] ^ 1]),
        "rubbish": b"rubbish " * 40,
        "empty": b"",
        "other steps": data,
    }[damage]
    fresh = wan.begin(_request(frames=9 if damage == "other steps" else 5))
    with pytest.raises(ResumeError, match=r"read|checksum|fit"):
        restore(fresh, bad, "this")
    assert fresh.index == 0


def test_requests_in_threads_share_steps_and_equal_those_alone(wan: WanModel) -> None:
    batcher = StepBatcher(wan, max_requests=4)
    batcher.costs.best = lambda _, most: most  # whether it pays is not asked here
    asked = [_request(seed=seed, prompt=f"a cat {seed}", steps=4 + seed % 2) for seed in range(4)]
    all_here = threading.Barrier(4, timeout=60)
    passes: list[int] = []
    handle = wan.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))

    def wait_for_all(done: int, *_: object) -> None:
        if done == 0:
            all_here.wait()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        clips = list(threads.map(lambda request: batcher.generate(request, wait_for_all), asked))
    handle.remove()
    batcher.close()
    assert len(passes) < sum(request.steps for request in asked)
    for request, clip in zip(asked, clips, strict=True):
        alone = (_ours(wan, request) * 255).round()
        assert np.abs(clip.astype(float) - alone).max() <= 1


def test_pickled_weights_are_refused(starter: Path, tmp_path: Path) -> None:
    bad = _copy(starter, tmp_path)
    weights = bad / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(ModelLoadError, match=r"diffusion_pytorch_model\.bin is a pickle"):
        load(bad, CPU)


def test_code_from_elsewhere_is_refused_before_it_is_imported(starter: Path, tmp_path: Path) -> None:
    for change in ({"vae": ["this", "Evil"]}, {"_class_name": "EvilPipeline"}, {"_class_name": ["evil", "Pipe"]}):
        bad = _copy(starter, tmp_path / str(len(str(change))))
        index = json.loads((bad / "model_index.json").read_text())
        (bad / "model_index.json").write_text(json.dumps({**index, **change}))
        with pytest.raises(ModelLoadError, match=r"code from|wants code"):
            load(bad, CPU)


def test_damaged_directories_say_what_is_wrong(starter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model_index\.json"):
        load(tmp_path, CPU)
    cut = _copy(starter, tmp_path / "cut")
    weights = cut / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="not a whole safetensors file"):
        load(cut, CPU)
    missing = _copy(starter, tmp_path / "missing")
    (missing / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load(missing, CPU)


def test_the_starter_is_the_same_everywhere_and_its_card_says_that_it_is_noise(starter: Path, tmp_path: Path) -> None:
    card = build(tmp_path, lambda _: None)
    assert card.notice is not None
    assert "random weights" in card.notice
    for weights in starter.rglob("*.safetensors"):
        assert weights.read_bytes() == (tmp_path / weights.relative_to(starter)).read_bytes()


def test_a_directory_without_a_card_gets_its_geometry_from_its_configurations(starter: Path) -> None:
    card = read_card(starter)
    assert (card.family, card.fps, card.frames_multiple, card.size_multiple) == ("WanPipeline", 16, 4, 16)
    assert (card.tasks, card.image_input) == (["video"], "none")


def test_a_first_frame_is_optional_where_timesteps_are_per_token(starter: Path, tmp_path: Path) -> None:
    masked = _copy(starter, tmp_path)
    (masked / "card.json").unlink(missing_ok=True)
    index = json.loads((masked / "model_index.json").read_text())
    (masked / "model_index.json").write_text(json.dumps({**index, "expand_timesteps": True}))
    assert read_card(masked).image_input == "optional"
    model = load(masked, CPU)
    assert isinstance(model, WanModel)
    assert "mask" in model.begin(_request(image=_picture())).inputs


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, dirs_exist_ok=True))
