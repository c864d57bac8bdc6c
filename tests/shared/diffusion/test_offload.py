"""Weights that wait on the host and are copied when they are used: the plan, and that clips stay the same."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.shared.diffusion.tiny_models import FAMILY_KINDS, mochi, picture, request, wan

from tessera.device.hardware import Device
from tessera.diffusion.families.base import FamilyModel
from tessera.diffusion.loading import pipeline as diffusion
from tessera.diffusion.loading.offload_plan import OffloadMode, WeightBytes, measure_weights, plan_offload
from tessera.diffusion.loading.pipeline import AS_STORED, OffloadOptions, load
from tessera.diffusion.loading.transformers import TransformerOptions
from tessera.diffusion.step_cache.policies import StepCache
from tessera.errors import ModelLoadError
from tessera.models.cpu_linear import PackedLinear
from tessera.models.offload import DEVICE_SLOTS, OnDemandComponents, StreamedBlocks, tensors_of
from tessera.settings.video import VideoSettings
from tessera_video.loading import load_model

CPU = Device(torch.device("cpu"), torch.float32, "cpu")
PLENTY = 1 << 40
BLOCKS = OffloadOptions("blocks", PLENTY)

KINDS: dict[str, Callable[[], Any]] = {
    "Wan": wan,
    "Wan, two experts": lambda: wan(transformer_2=True, boundary_ratio=0.5),
    **FAMILY_KINDS,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Pipelines on disk, by the name of their kind."""
    made: dict[str, Path] = {}

    def directory(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("pipe")
            KINDS[kind]().save_pretrained(str(made[kind]))
        return made[kind]

    return directory


def clip(model: Any, **values: Any) -> np.ndarray[Any, Any]:
    """All steps and the decoded frames."""
    if model.image_input != "none":
        values = {"image": picture(), **values}
    state = model.begin(request(**values))
    while not state.done:
        model.step([state])
    frames: np.ndarray[Any, Any] = model.decode(state)
    return frames


def blocks_of(model: FamilyModel) -> list[torch.nn.Module]:
    return [block for blocks in model.blocks.values() for block in blocks.blocks]


def here(model: FamilyModel) -> list[bool]:
    """Of each block, whether any of its weights are there."""
    return [bool(tensors_of(block)) for block in blocks_of(model)]


# what is decided

GIVEN = WeightBytes({"text_encoder": 50, "vae": 10}, {"transformer": 5}, {"transformer": (20, 20, 20, 20)})


@pytest.mark.parametrize(
    ("room", "how", "on_demand", "streamed", "taken"),
    [
        (145, "auto", 0, 0, 145),
        (144, "auto", 2, 0, 5 + 80 + 50),
        (135, "auto", 2, 0, 135),
        # One that comes needs two slots, so three have to come before anything is won.
        (134, "auto", 2, 3, 5 + 50 + 20 + 40),
        (100, "auto", 2, 4, 5 + 50 + 40),
        (95, "auto", 2, 4, 95),
        (0, "none", 0, 0, 145),
        (1000, "encoders", 2, 0, 135),
        (1000, "blocks", 2, 4, 95),
    ],
)
def test_as_little_comes_as_must(room: int, how: OffloadMode, on_demand: int, streamed: int, taken: int) -> None:
    plan = plan_offload(GIVEN, room, how)
    assert (len(plan.on_demand), plan.streamed.get("transformer", 0), plan.device_bytes) == (on_demand, streamed, taken)
    assert plan.host_bytes == (60 if on_demand else 0) + 20 * streamed


def test_what_never_fits_is_refused_with_what_helps() -> None:
    with pytest.raises(ModelLoadError, match=r"one by one; there is room for 0\.0 GiB.*video\.weights"):
        plan_offload(GIVEN, 94)


@given(
    st.lists(st.integers(1, 100), max_size=3),
    st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=6), min_size=1, max_size=2),
    st.integers(0, 1500),
)
def test_a_plan_fits_and_no_smaller_one_does(components: list[int], blocks: list[list[int]], room: int) -> None:
    names = [f"transformer{number}" for number in range(len(blocks))]
    weights = WeightBytes(
        {f"c{number}": size for number, size in enumerate(components)},
        dict.fromkeys(names, 1),
        {name: tuple(sizes) for name, sizes in zip(names, blocks, strict=True)},
    )
    on_demand = len(blocks) + max(components, default=0)

    def taken(counts: tuple[int, ...]) -> int:
        stay = [size for count, sizes in zip(counts, blocks, strict=True) for size in sizes[: len(sizes) - count]]
        come = [size for count, sizes in zip(counts, blocks, strict=True) for size in sizes[len(sizes) - count :]]
        return on_demand + sum(stay) + DEVICE_SLOTS * max(come, default=0)

    try:
        plan = plan_offload(weights, room)
    except ModelLoadError:
        assert taken(tuple(map(len, blocks))) > room < weights.total
        return
    assert plan.device_bytes <= room
    if plan.everything_stays:
        assert plan.device_bytes == weights.total
        return
    assert weights.total > room
    counts = tuple(plan.streamed[name] for name in names)
    assert taken(counts) == plan.device_bytes
    for index, count in enumerate(counts):
        for fewer in range(count):
            assert taken((*counts[:index], fewer, *[0] * (len(counts) - index - 1))) > room


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_headers_tell_what_a_pipeline_takes(directories: Callable[[str], Path], kind: str) -> None:
    directory = directories(kind)
    model = load(directory, CPU)
    assert isinstance(model, FamilyModel)
    weights = measure_weights(directory, model.block_list, itemsize=4, scheme="stored")
    components = {name: part for name, part in model.pipe.components.items() if isinstance(part, torch.nn.Module)}
    taken = {
        name: sum(one.nbytes for one in part.parameters())
        + sum(one.nbytes for one in part.modules() if isinstance(one, PackedLinear))
        for name, part in components.items()
    }
    assert {
        **weights.components,
        **{name: sum(weights.blocks[name]) + weights.rest[name] for name in weights.blocks},
    } == (
        pytest.approx(taken, rel=0.02)  # a few of them are buffers
    )
    assert [len(sizes) for sizes in weights.blocks.values()] == [
        len(model.blocks[id(e)].blocks) for e in model.expert_components()
    ]


# what comes


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_clip_is_the_same(directories: Callable[[str], Path], kind: str) -> None:
    stays, comes = load(directories(kind), CPU), load(directories(kind), CPU, AS_STORED, BLOCKS)
    assert isinstance(comes, FamilyModel)
    assert not any(here(comes))
    # A CPU's convolution may round the last bit another way where memory lies elsewhere.
    assert np.abs(clip(comes) - clip(stays)).max() < 1e-6
    assert not any(here(comes)), "what has been used is away again"
    for name, component in comes.pipe.components.items():
        if isinstance(component, torch.nn.Module) and not name.startswith("transformer"):
            assert tensors_of(component, buffers=False) == []


def test_some_blocks_stay(directories: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> None:
    directory = directories("Wan")
    stays = load(directory, CPU)
    assert isinstance(stays, FamilyModel)
    weights = measure_weights(directory, "blocks", itemsize=4, scheme="stored")
    plan = plan_offload(weights, PLENTY, "encoders")
    with caplog.at_level(logging.INFO):
        comes = load(directory, CPU, AS_STORED, OffloadOptions("auto", plan.device_bytes))
    assert isinstance(comes, FamilyModel)
    assert all(here(comes))
    assert "text_encoder, vae come when they are used" in caplog.text
    assert np.array_equal(clip(comes), clip(stays))


@pytest.mark.slow
def test_quantized_blocks_come_as_they_are(tmp_path: Path) -> None:
    pipe = wan()
    torch.manual_seed(4)
    wide: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 32, "ffn_dim": 256, "num_layers": 3}
    pipe.register_modules(transformer=diffusers.WanTransformer3DModel(**{**pipe.transformer.config, **wide}).eval())
    pipe.save_pretrained(str(tmp_path))
    for scheme in ("int8", "int4"):
        options = TransformerOptions(scheme)
        stays, comes = load(tmp_path, CPU, options), load(tmp_path, CPU, options, BLOCKS)
        assert isinstance(comes, FamilyModel)
        assert not any(here(comes))
        assert np.array_equal(clip(comes), clip(stays))


def test_the_next_block_comes_while_one_computes(directories: Callable[[str], Path]) -> None:
    comes = load(directories("Wan, two experts"), CPU, AS_STORED, BLOCKS)
    assert isinstance(comes, FamilyModel)
    seen: list[list[bool]] = []
    blocks = blocks_of(comes)
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: seen.append(here(comes)))
    clip(comes, steps=3)
    assert all(sum(there) == 1 for there in seen)
    (streamed,) = {
        id(hook.func.__self__): hook.func.__self__
        for block in blocks
        for hook in block._forward_pre_hooks.values()
        if hasattr(hook, "func")
    }.values()
    assert isinstance(streamed, StreamedBlocks)
    # Of each expert both blocks are fetched once a pass, and the first of the next pass before it is asked for.
    assert len(seen) < streamed.fetched <= len(seen) + 4


def test_a_block_that_fails_leaves_nothing_behind(directories: Callable[[str], Path]) -> None:
    stays, comes = (load(directories("Wan"), CPU, AS_STORED, way) for way in (OffloadOptions(), BLOCKS))
    assert isinstance(comes, FamilyModel)
    expected = clip(stays)
    broken = blocks_of(comes)[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(torch.OutOfMemoryError):
        clip(comes)
    assert not any(here(comes))
    broken.remove()
    assert np.array_equal(clip(comes), expected)


def test_step_caches_skip_blocks_that_come(directories: Callable[[str], Path]) -> None:
    given: dict[str, Any] = {"steps": 8, "step_cache": StepCache("first_block", 0.5)}
    stays, comes = (load(directories("Wan"), CPU, AS_STORED, way) for way in (OffloadOptions(), BLOCKS))
    assert np.array_equal(clip(comes, **given), clip(stays, **given))


def test_a_component_on_demand_is_empty_while_away_and_says_where_it_would_be() -> None:
    layer, place = torch.nn.Linear(3, 3), torch.device("cpu")
    layer.register_buffer("mean", torch.ones(3))
    x = torch.ones(1, 3)
    expected = layer(x)
    on_demand = OnDemandComponents(place)
    on_demand.add(layer, ("forward",))
    assert (layer.weight.numel(), layer.weight.device, layer.weight.dtype) == (0, place, torch.float32)
    assert layer.mean.tolist() == [1, 1, 1]
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)
    assert layer.weight.numel() == 0
    with pytest.raises(RuntimeError):
        torch.nn.functional.linear(x, layer.weight)


def test_settings_say_what_may_be_on_the_device(directories: Callable[[str], Path]) -> None:
    directory = directories("Wan")
    comes = load_model(directory, CPU, VideoSettings(offload="blocks", weights_bytes=PLENTY))
    assert isinstance(comes, FamilyModel)
    assert not any(here(comes))
    stays = load_model(directory, CPU, VideoSettings())
    assert isinstance(stays, FamilyModel)
    assert all(here(stays))
    with pytest.raises(ModelLoadError, match=r"video\.weights"):
        load_model(directory, CPU, VideoSettings(weights_bytes=1))


def test_a_host_without_memory_is_told_before_anything_is_read(
    directories: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffusion, "free_bytes", lambda _: 10)
    with pytest.raises(ModelLoadError, match="wait in the host's memory"):
        load(directories("Wan"), CPU, AS_STORED, BLOCKS)


def test_diffusers_own_loop_brings_weights_to_gpus_alone(tmp_path: Path) -> None:
    mochi().save_pretrained(str(tmp_path))
    with pytest.raises(ModelLoadError, match="GPUs alone"):
        load(tmp_path, CPU, AS_STORED, OffloadOptions("encoders", PLENTY))


def test_what_is_not_read_does_not_count(directories: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(directories("Wan"), tmp_path, dirs_exist_ok=True)
    given: dict[str, Any] = {"itemsize": 4, "scheme": "stored"}
    expected = measure_weights(tmp_path, "blocks", **given)
    stored = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    shutil.copy(stored, stored.with_name("diffusion_pytorch_model.fp16.safetensors"))
    assert measure_weights(tmp_path, "blocks", **given) == expected, "a variant is beside what is read"
    passes = measure_weights(tmp_path, "blocks", missing={"text_encoder": None}, **given)
    assert expected.total - passes.total == expected.components["text_encoder"]


@pytest.mark.parametrize("header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b'{"a": {"shape": ["x"]}}'])
def test_a_hostile_header_is_refused_by_its_file(
    directories: Callable[[str], Path], tmp_path: Path, header: bytes
) -> None:
    shutil.copytree(directories("Wan"), tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelLoadError, match=r"vae/diffusion_pytorch_model\.safetensors is not a safetensors file"):
        load(tmp_path, CPU)
