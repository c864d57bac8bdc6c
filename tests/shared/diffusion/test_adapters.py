"""Adapters (LoRA): equal to Diffusers' own, chosen by each request, never mixed, and refused when they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import peft
import pytest
import torch
from diffusers.training_utils import _collate_lora_metadata
from safetensors.torch import load_file, save_file
from tests.shared.diffusion.tiny_models import cogvideox, hunyuan, ltx, mochi, request, wan

from tessera.api.videos.request import make_input
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.loading import lora_files as diffusion_adapters
from tessera.diffusion.loading.lora_files import load_adapters
from tessera.diffusion.request import DiffusionRequest
from tessera.diffusion.whole_pipeline import PipelineModel
from tessera.errors import InvalidRequestError, ModelLoadError, SettingsError
from tessera.hub.adapters import adapter_files
from tessera.settings.video import VideoSettings
from tessera.web.forms import Form
from tessera.wire.jobs import VideoInput
from tessera.wire.models import Card
from tessera.wire.videos import VideoCreateRequest

CPU = torch.device("cpu")
MOST_DIFFERENCE = 1e-4
RANK = 4
TWO_EXPERTS = {"transformer_2": True, "boundary_ratio": 0.7}
CARD = Card(
    id="tiny",
    family="WanPipeline",
    tasks=["video"],
    source="test",
    parameters=1,
    licence="none",
    sizes=["64x64"],
    fps=8,
    frames_multiple=4,
    size_multiple=16,
    adapters=["film", "ink"],
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(pipe: Any, **files: Path | dict[int, Path]) -> FamilyModel:
    """The pipeline in our loop, with adapters."""
    family = family_of(type(pipe).__name__)
    assert family is not None
    model = family(pipe, CPU)
    load_adapters(model, {name: {0: file} if isinstance(file, Path) else file for name, file in files.items()})
    return model


def weights(make: Callable[[], Any] = wan, *, seed: int = 1, prefix: str = "transformer") -> dict[str, torch.Tensor]:
    """A random adapter of the attention and feed-forward layers, by Diffusers' names."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for name, module in make().transformer.named_modules():
        if "blocks." in name and isinstance(module, torch.nn.Linear) and any(part in name for part in ("to_", "ff")):
            sides = {"A": (RANK, module.in_features), "B": (module.out_features, RANK)}
            for side, shape in sides.items():
                made[f"{prefix}.{name}.lora_{side}.weight"] = torch.randn(shape, generator=generator) / 2
    return made


def saved(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    save_file(tensors, path, metadata)
    return path


def ours(model: FamilyModel, request: DiffusionRequest) -> np.ndarray:
    state = model.begin(request)
    while not state.done:
        model.step([state])
    return model.decode(state)


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
    return made.frames[0][: request.frames]


@pytest.mark.parametrize("make", [wan, ltx, cogvideox])
def test_mixed_adapters_equal_diffusers_with_the_same_weights(make: Callable[[], Any], tmp_path: Path) -> None:
    film, ink = (saved(tmp_path / f"{name}.safetensors", weights(make, seed=len(name))) for name in ("film", "ink"))
    model, pipe = of(make(), film=film, ink=ink), make()
    plain = request(steps=2, frames=5)
    assert (ours(model, plain) == ours(of(make()), plain)).all()
    for name, file in (("film", film), ("ink", ink)):
        pipe.load_lora_weights(str(tmp_path), weight_name=file.name, adapter_name=name)
    for mix in ((("film", 0.7),), (("film", 0.7), ("ink", -0.5))):
        pipe.set_adapters([name for name, _ in mix], [weight for _, weight in mix])
        clip = ours(model, request(steps=2, frames=5, adapters=mix))
        assert np.abs(clip - theirs(pipe, plain)).max() < MOST_DIFFERENCE
        assert np.abs(clip - ours(model, plain)).max() > 100 * MOST_DIFFERENCE


def test_a_file_as_trainers_write_it_has_the_alpha_that_it_says(tmp_path: Path) -> None:
    trained, pipe = wan(), wan()
    config = peft.LoraConfig(
        r=RANK,
        lora_alpha=12,
        alpha_pattern={"blocks.1.ffn.net.0.proj": 2},
        target_modules=["to_q", "ffn.net.0.proj"],
        init_lora_weights=False,
    )
    trained.transformer.add_adapter(config)
    trained.save_lora_weights(
        str(tmp_path),
        transformer_lora_layers=peft.get_peft_model_state_dict(trained.transformer),
        **_collate_lora_metadata({"transformer": trained.transformer}),
    )
    file = next(tmp_path.glob("*.safetensors"))
    pipe.load_lora_weights(str(tmp_path), weight_name=file.name, adapter_name="film")
    wanted = request(steps=2, frames=5)
    clip = ours(of(wan(), film=file), request(steps=2, frames=5, adapters=(("film", 1.0),)))
    assert np.abs(clip - theirs(pipe, wanted)).max() < MOST_DIFFERENCE


def test_a_file_with_the_names_of_wans_makers_equals_diffusers(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for block in range(3):
        sizes = {f"{kind}_attn.{part}": (24, 24) for kind in ("self", "cross") for part in "qkvo"}
        for layer, (inputs, outputs) in {**sizes, "ffn.0": (24, 32), "ffn.2": (32, 24)}.items():
            name = f"diffusion_model.blocks.{block}.{layer}"
            tensors[f"{name}.lora_down.weight"] = torch.randn(RANK, inputs, generator=generator)
            tensors[f"{name}.lora_up.weight"] = torch.randn(outputs, RANK, generator=generator)
            tensors[f"{name}.alpha"] = torch.tensor(2.0)
    file, pipe = saved(tmp_path / "film.safetensors", tensors), wan()
    pipe.load_lora_weights(str(tmp_path), weight_name=file.name, adapter_name="film")
    wanted = request(steps=2, frames=5, adapters=(("film", 1.0),))
    assert np.abs(ours(of(wan(), film=file), wanted) - theirs(pipe, wanted)).max() < MOST_DIFFERENCE


@pytest.mark.slow
@pytest.mark.parametrize("in_one_file", [False, True])
def test_each_of_two_experts_has_its_own_part_of_an_adapter(in_one_file: bool, tmp_path: Path) -> None:
    high, low = weights(seed=1), weights(seed=2)
    files = {expert: saved(tmp_path / f"{expert}.safetensors", part) for expert, part in enumerate((high, low))}
    pipe = wan(**TWO_EXPERTS)
    pipe.load_lora_weights(str(tmp_path), weight_name="0.safetensors", adapter_name="high")
    pipe.load_lora_weights(str(tmp_path), weight_name="1.safetensors", adapter_name="low", load_into_transformer_2=True)
    both = high | {name.replace("transformer.", "transformer_2.", 1): part for name, part in low.items()}
    given = saved(tmp_path / "both.safetensors", both) if in_one_file else files
    wanted = request(frames=5, adapters=(("film", 1.0),))
    clip = ours(of(wan(**TWO_EXPERTS), film=given), wanted)
    assert np.abs(clip - theirs(pipe, wanted)).max() < MOST_DIFFERENCE


def test_requests_with_other_adapters_never_share_a_pass_and_those_with_the_same_do(tmp_path: Path) -> None:
    film, ink = (saved(tmp_path / f"{name}.safetensors", weights(seed=len(name))) for name in ("film", "ink"))
    model = of(wan(), film=film, ink=ink)
    mixes: list[tuple[tuple[str, float], ...]] = [(), (("film", 1.0),), (("film", 1.0),), (("film", 0.5),)]
    mixes += [(("ink", 1.0),), (("film", 1.0), ("ink", 1.0))]
    asked = [request(steps=2, frames=5, seed=seed, adapters=mix) for seed, mix in enumerate(mixes)]
    alone = [ours(model, each) for each in asked]
    states = [model.begin(each) for each in asked]
    rows: list[int] = []
    handle = model.pipe.transformer.register_forward_pre_hook(
        lambda _, __, given: rows.append(len(given["hidden_states"])), with_kwargs=True
    )
    model.step(states)
    handle.remove()
    assert sorted(rows) == [2, 2, 2, 2, 4]
    model.step(states)
    for state, expected in zip(states, alone, strict=True):
        assert np.abs(model.decode(state) - expected).max() < MOST_DIFFERENCE


def test_an_adapter_that_fails_in_a_pass_leaves_nothing_behind(tmp_path: Path) -> None:
    model = of(wan(), film=saved(tmp_path / "film.safetensors", weights()))
    plain = request(steps=2, frames=5)
    before = ours(model, plain)
    state = model.begin(request(steps=2, frames=5, adapters=(("film", 1.0),)))
    handle = model.pipe.transformer.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.step([state])
    handle.remove()
    assert (ours(model, plain) == before).all()


def without(tensors: dict[str, torch.Tensor], key: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in tensors.items() if name != key}


LAYER = "transformer.blocks.0.attn1.to_q"
DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], str]] = {
    "no such layer": (
        lambda good: good | {"transformer.blocks.9.attn1.to_q.lora_A.weight": torch.zeros(RANK, 24)},
        r"blocks\.9\.attn1\.to_q.*no linear layer",
    ),
    "no linear layer": (
        lambda good: good | {"transformer.blocks.0.norm2.lora_A.weight": torch.zeros(RANK, 24)},
        r"blocks\.0\.norm2.*no linear layer",
    ),
    "another size": (
        lambda good: good | {f"{LAYER}.lora_A.weight": torch.zeros(RANK, 25)},
        r"blocks\.0\.attn1\.to_q.*another model",
    ),
    "one side": (lambda good: without(good, f"{LAYER}.lora_B.weight"), r"one side of .*blocks\.0\.attn1\.to_q"),
    "a bias that does not fit": (
        lambda good: good | {f"{LAYER}.lora_B.bias": torch.zeros(3)},
        r"bias of .*blocks\.0\.attn1\.to_q",
    ),
    "numbers that are none": (
        lambda good: good | {f"{LAYER}.lora_A.weight": torch.full((RANK, 24), torch.nan)},
        r"not finite in .*blocks\.0\.attn1\.to_q",
    ),
    "integers": (lambda good: good | {f"{LAYER}.lora_A.weight": torch.zeros(RANK, 24, dtype=torch.int8)}, "I8"),
    "a second expert": (
        lambda good: good | {"transformer_2.blocks.0.attn1.to_q.lora_A.weight": torch.zeros(RANK, 24)},
        "second expert",
    ),
    "a text encoder's": (lambda good: good | {"text_encoder.x.lora_A.weight": torch.zeros(1, 1)}, "text_encoder"),
    "another method": (lambda good: good | {f"{LAYER}.lokr_w1": torch.zeros(2, 2)}, "no plain LoRA"),
    "a billion blocks": (
        lambda _: {"diffusion_model.blocks.999999999.self_attn.q.lora_A.weight": torch.zeros(1, 1)},
        "999999999",
    ),
    "strange names": (lambda _: {"diffusion_model.blocks.0.what.lora_A.weight": torch.zeros(1, 1)}, "what"),
    "nothing": (lambda _: {}, "0 tensors"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_does_not_fit_is_refused_and_names_the_layer(damage: str, tmp_path: Path) -> None:
    change, reason = DAMAGE[damage]
    file = saved(tmp_path / "bad.safetensors", change(weights()))
    with pytest.raises(ModelLoadError, match=reason) as refused:
        of(wan(), bad=file)
    assert str(file) in refused.value.message


@pytest.mark.slow
def test_a_file_is_checked_by_its_header_before_a_tensor_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(diffusion_adapters, "load_file", read)
    for damage in ("no such layer", "another size", "one side", "integers", "another method"):
        change, reason = DAMAGE[damage]
        with pytest.raises(ModelLoadError, match=reason):
            of(wan(), bad=saved(tmp_path / "bad.safetensors", change(weights())))
    good = saved(tmp_path / "good.safetensors", weights())
    monkeypatch.setattr(diffusion_adapters, "MAX_BYTES", 100)
    with pytest.raises(ModelLoadError, match="the limit is 100"):
        of(wan(), good=good)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.bin", b"", "no .safetensors file"),
        ("a.safetensors", b"\x80\x04 a pickle", "damaged"),
        ("a.safetensors", b"\xff" * 64, "damaged"),
        ("a.safetensors", None, "there is no adapter"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(name: str, data: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ModelLoadError, match=reason):
        of(wan(), bad=file)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"transformer.use_dora": True}, "DoRA"),
        ({"transformer.lora_alpha": "much"}, "'much'"),
        ({"transformer.alpha_pattern": {"(a+)+b": 1}}, "alpha_pattern"),
        (["no object"], "no JSON object"),
    ],
)
def test_a_configuration_in_a_file_that_is_not_understood_is_refused(
    config: object, reason: str, tmp_path: Path
) -> None:
    file = saved(tmp_path / "a.safetensors", weights(), {"lora_adapter_metadata": json.dumps(config)})
    with pytest.raises(ModelLoadError, match=reason):
        of(wan(), bad=file)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.safetensors", weights())
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="damaged"):
        of(wan(), bad=file)


def test_a_family_without_a_loader_of_diffusers_takes_diffusers_names(tmp_path: Path) -> None:
    good = saved(tmp_path / "good.safetensors", weights(hunyuan))
    model = of(hunyuan(), film=good)
    plain, adapted = request(steps=1, frames=5), request(steps=1, frames=5, adapters=(("film", 1.0),))
    assert np.abs(ours(model, plain) - ours(model, adapted)).max() > MOST_DIFFERENCE
    strange = {f"x.{name}": value for name, value in load_file(good).items()}
    with pytest.raises(ModelLoadError, match="convert it"):
        of(hunyuan(), bad=saved(tmp_path / "bad.safetensors", strange))


def test_an_adapter_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    model = of(wan(), film=saved(tmp_path / "film.safetensors", weights()))
    with pytest.raises(InvalidRequestError, match=r"'ink'.*film") as refused:
        model.begin(request(adapters=(("ink", 1.0),)))
    assert refused.value.param == "adapters"
    with pytest.raises(InvalidRequestError, match="adapters"):
        PipelineModel(mochi(), CPU).generate(request(adapters=(("ink", 1.0),)), lambda *_: None)


def made_of(body: dict[str, Any]) -> VideoInput:
    asked = Form(body, {}, json=msgspec.json.encode(body)).decode(VideoCreateRequest)
    return make_input(asked, CARD, VideoSettings())


def test_a_request_names_adapters_in_json_and_in_a_form() -> None:
    body = {"prompt": "a cat", "adapters": {"ink": 0, "film": 0.8}}
    in_form = {"prompt": "a cat", "adapters": {"ink": "0", "film": "0.8"}}
    as_form = Form(in_form, {}).decode(VideoCreateRequest)
    from_form = make_input(as_form, CARD, VideoSettings())
    assert made_of(body).adapters == from_form.adapters == {"film": 0.8}
    for wrong, reason in (({"oil": 1}, "'oil'.*film, ink"), ({"film": 9}, "adapters")):
        bad = {"prompt": "a cat", "adapters": wrong}
        with pytest.raises(InvalidRequestError, match=reason) as refused:
            made_of(bad)
        assert str(refused.value.param).startswith("adapters")


def test_settings_list_adapters_by_name_and_expert() -> None:
    found = adapter_files(["film=/a/high=1.safetensors", "film@2=/a/low.safetensors", "ink=b.safetensors"])
    assert found == {
        "film": {0: Path("/a/high=1.safetensors"), 1: Path("/a/low.safetensors")},
        "ink": {0: Path("b.safetensors")},
    }
    for wrong in (["film"], ["../film=a"], ["film@3=a"], ["film=a", "film=b"], ["=a"], ["film="]):
        with pytest.raises(SettingsError, match=r"video\.adapters"):
            adapter_files(wrong)
