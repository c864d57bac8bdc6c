"""Diffusers' transformers through our kernels, in Triton's interpreter: equal to the unmodified ones."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import pytest
import torch
from tests.kernels.support import BOUNDS, relative_rms
from tests.shared.diffusion.tiny_models import FAMILY_KINDS, request, wan
from torch import nn

from tessera.diffusion.families.block_attention import attended_first
from tessera.diffusion.families.cogvideox.model import CogVideoXModel
from tessera.diffusion.families.registry import family_of
from tessera.diffusion.families.wan.model import WanModel
from tessera.diffusion.loading.transformers import TransformerOptions, prepare
from tessera.diffusion.step_cache.policies import StepCache
from tessera_kernels import dispatch
from tessera_kernels.attention import triton as attention_launcher
from tessera_kernels.layer_norm import triton as norm_launcher
from tessera_kernels.rotary import triton as rotary_launcher

CPU = torch.device("cpu")
MOST_DIFFERENCE = 1e-4
STORED = TransformerOptions()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def interpreter() -> Iterator[None]:
    dispatch.interpret_on_cpu(on=True)
    yield
    dispatch.interpret_on_cpu(on=False)


SMALL = {"width": 16, "height": 16, "frames": 5}
"""Size of clips that take the interpreter seconds."""


def fused(pipe: Any, options: TransformerOptions = STORED) -> Any:
    """A copy of a pipeline in our step loop, its transformers as `load` prepares them."""
    family = family_of(type(pipe).__name__)
    assert family is not None
    pipe = copy.deepcopy(pipe)
    for component in pipe.components.values():
        if isinstance(component, nn.Module):
            component.requires_grad_(requires_grad=False)
    reports = prepare(pipe, family.block_list, CPU, options)
    return family(pipe, CPU), reports


@pytest.fixture
def _short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (WanModel, CogVideoXModel):
        monkeypatch.setattr(family, "max_prompt_tokens", 5)


def telling(launched: set[str], name: str, launch: Callable[..., Any]) -> Callable[..., Any]:
    def seen(*args: Any, **kwargs: Any) -> Any:
        launched.add(name)
        return launch(*args, **kwargs)

    return seen


def denoised(model: Any, wanted: list[Any]) -> list[torch.Tensor]:
    """The latents of some requests, the second of which arrives a step later."""
    states = [model.begin(wanted[0])]
    model.step(states)
    states += [model.begin(other) for other in wanted[1:]]
    while running := [state for state in states if not state.done]:
        model.step(running)
    return [state.latents_BCTHW for state in states]


def inputs_of(pipe: Any) -> dict[str, Any]:
    """Inputs of a transformer: two rows at different steps, with prompts of five tokens or of 512."""
    torch.manual_seed(0)
    transformer = pipe.transformer
    config, name = transformer.config, type(transformer).__name__
    given: dict[str, Any] = {"timestep": torch.tensor([999.0, 400.0]), "return_dict": False}
    if name == "WanTransformer3DModel":
        from_image = config.image_dim is not None
        given["hidden_states"] = torch.randn(2, config.in_channels, 2, 4, 4)
        given["encoder_hidden_states"] = torch.randn(2, 512 if from_image else 5, 32)
        return given | ({"encoder_hidden_states_image": torch.randn(2, 3, config.image_dim)} if from_image else {})
    given["encoder_hidden_states"] = torch.randn(2, 5, 32)
    if name == "LTXVideoTransformer3DModel":
        given["hidden_states"] = torch.randn(2, 8, config.in_channels)
        given["encoder_attention_mask"] = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
        return given | {"num_frames": 2, "height": 2, "width": 2, "rope_interpolation_scale": (0.3, 4, 4)}
    frames = config.patch_size_t or 1
    given["hidden_states"] = torch.randn(2, frames, config.in_channels, 4, 4)
    if config.use_rotary_positional_embeddings:
        given["image_rotary_emb"] = pipe._prepare_rotary_positional_embeddings(32, 32, frames, CPU)
    return given | ({"ofs": torch.full((1,), 2.0)} if config.ofs_embed_dim is not None else {})


def wan_as(**config: Any) -> Any:
    """A Wan pipeline whose transformer differs by some of its configuration."""
    pipe = wan()
    torch.manual_seed(4)
    pipe.transformer = diffusers.WanTransformer3DModel(**{**pipe.transformer.config, **config}).eval()
    return pipe


def short(kind: str) -> Any:
    """A CogVideoX pipeline for prompts of five tokens."""
    pipe = FAMILY_KINDS[kind]()
    torch.manual_seed(4)
    config = {**pipe.transformer.config, "max_text_seq_length": 5, "num_layers": 1}
    pipe.transformer = diffusers.CogVideoXTransformer3DModel(**config).eval()
    return pipe


def per_token(given: dict[str, Any]) -> dict[str, Any]:
    """Inputs with a timestep for each token, as if a first frame is given."""
    return given | {"timestep": torch.rand(2, 8) * 999}


KINDS: dict[str, tuple[Callable[[], Any], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "Wan": (wan, dict),
    "Wan, steps of tokens": (wan, per_token),
    "Wan, without a norm before the prompt": (lambda: wan_as(cross_attn_norm=False, num_layers=1), dict),
    "Wan 2.1, features of an image": (lambda: wan_as(image_dim=4, added_kv_proj_dim=24, num_layers=1), dict),
    "LTX": (FAMILY_KINDS["LTX"], dict),
    "LTX, steps of tokens": (FAMILY_KINDS["LTX"], per_token),
    "CogVideoX 1.0": (lambda: short("CogVideoX 1.0"), dict),
    "CogVideoX 1.5": (lambda: short("CogVideoX 1.5"), dict),
    "CogVideoX 1.5 from an image": (lambda: short("CogVideoX 1.5 from an image"), dict),
}


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("kind", KINDS)
def test_fused_transformers_equal_diffusers_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[str] = set()
    for launcher, name in (
        (attention_launcher, "attention"),
        (norm_launcher, "norm"),
        (norm_launcher, "gated_residual"),
        (rotary_launcher, "rotary"),
    ):
        monkeypatch.setattr(launcher, name, telling(launched, name, getattr(launcher, name)))
    make, change = KINDS[kind]
    pipe = make()
    given = change(inputs_of(pipe))
    with torch.inference_mode():
        exact = pipe.transformer(**given)[0]
    assert launched == set()
    model, reports = fused(pipe)
    assert all(report.fused.blocks and not report.fused.unknown for report in reports)
    with torch.inference_mode():
        got = model.pipe.transformer(**given)[0]
    assert launched == {"attention", "norm", "gated_residual", *([] if kind == "CogVideoX 1.0" else ["rotary"])}
    assert (got - exact).abs().max() < MOST_DIFFERENCE
    assert relative_rms(got, exact) < BOUNDS[torch.float32]


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter", "_short_prompts")
@pytest.mark.parametrize("kind", ["Wan, two experts", "CogVideoX 1.0"])
def test_requests_that_share_passes_and_skip_steps_equal_diffusers_blocks(kind: str) -> None:
    """No step cache holds a tensor that blocks write to."""
    pipe = wan(transformer_2=True, boundary_ratio=0.6) if kind == "Wan, two experts" else short(kind)
    cached = StepCache("first_block", 0.9)
    wanted = [request(**SMALL, steps=3, step_cache=cached), request(**SMALL, steps=1, seed=2, prompt="a dog")]
    model, _ = fused(pipe)
    made = denoised(model, wanted)
    dispatch.interpret_on_cpu(on=False)
    family = family_of(type(pipe).__name__)
    assert family is not None
    plain = family(pipe, CPU)
    for got, exact in zip(made, denoised(plain, wanted), strict=True):
        assert (got - exact).abs().max() < MOST_DIFFERENCE
    computed, asked = [sum(blocks.computed for blocks in each.blocks.values()) for each in (model, plain)], 2 * (3 + 1)
    assert computed[0] == computed[1] < asked


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(("attention", "bound"), [("int8", 1e-2), ("int8_fp8", 4e-2)])
def test_quantized_attention_is_within_its_bound_in_blocks(attention: Any, bound: float) -> None:
    pipe = wan()
    model, _ = fused(pipe, TransformerOptions(attention=attention))
    for transformer in (model.pipe.transformer, pipe.transformer):
        transformer.to(torch.float16)
    given = {
        "hidden_states": torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(0)).half(),
        "timestep": torch.tensor([500.0]),
        "encoder_hidden_states": torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1)).half(),
        "return_dict": False,
    }
    with torch.inference_mode():
        got = model.pipe.transformer(**given)[0]
        exact = pipe.transformer.float()(**{name: _float(value) for name, value in given.items()})[0]
    assert 1e-4 < relative_rms(got, exact) < bound


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


def wide() -> Any:
    """A Wan pipeline whose layers are large enough to be quantized."""
    return wan_as(num_attention_heads=4, attention_head_dim=32, ffn_dim=256)


@pytest.mark.slow
@pytest.mark.usefixtures("_short_prompts")
@pytest.mark.parametrize(
    ("weights", "bound", "bits", "in_interpreter"),
    [
        ("int8", 2e-2, 8.6, False),
        ("fp8", 5e-2, 8.6, False),
        ("fp8", 5e-2, 8.6, True),
        ("int4", 1.5e-1, 5.2, False),
        ("mxfp4", 2e-1, 4.6, False),
        ("nvfp4", 1.7e-1, 4.9, False),
    ],
)
def test_quantized_blocks_are_within_the_bounds_of_their_bits(
    weights: Any, bound: float, bits: float, in_interpreter: bool
) -> None:
    pipe = wide()
    dispatch.interpret_on_cpu(on=in_interpreter)
    try:
        model, reports = fused(pipe, TransformerOptions(weights=weights))
        wanted = [request(**SMALL, steps=1)]
        made = denoised(model, wanted)
    finally:
        dispatch.interpret_on_cpu(on=False)
    of_a_block = 7 if in_interpreter else 10  # where blocks are fused, q, k and v are one, and k and v of the prompt
    assert reports[0].quantized.layers == 3 * of_a_block
    assert reports[0].quantized.bytes_after * 8 / (reports[0].quantized.bytes_before / 4) <= bits
    outside = [name for name, _ in pipe.transformer.named_modules() if not name.startswith("blocks")]
    theirs = dict(pipe.transformer.named_modules())
    ours = dict(model.pipe.transformer.named_modules())
    assert all(type(ours[name]) is type(theirs[name]) for name in outside)
    family = family_of(type(pipe).__name__)
    assert family is not None
    for got, exact in zip(made, denoised(family(pipe, CPU), wanted), strict=True):
        assert relative_rms(got, exact) < bound


@pytest.mark.usefixtures("interpreter", "_short_prompts")
@pytest.mark.parametrize("weights", ["stored", "int8"])
def test_an_adapter_adds_its_product_to_the_output_of_a_layer(weights: Any) -> None:
    """Low-rank adapters (Hu et al. 2021) on fused and quantized layers, beside the same merged into weights."""

    def adapted(down: torch.Tensor, up: torch.Tensor) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
        return lambda _, inputs, output: output + inputs[0] @ down.t() @ up.t()

    pipe = wide()
    model, _ = fused(pipe, TransformerOptions(weights=weights))
    torch.manual_seed(5)
    places = ["attn1.to_q", "attn1.to_v", "attn2.to_k", "attn1.to_out.0", "ffn.net.0.proj", "ffn.net.2"]
    names = [f"{index}.{place}" for index, place in itertools.product(range(len(pipe.transformer.blocks)), places)]
    for name in names:
        layer = model.pipe.transformer.blocks[0].blocks.get_submodule(name)
        down, up = torch.randn(2, layer.in_features) / 8, torch.randn(layer.out_features, 2) / 8
        layer.register_forward_hook(adapted(down, up))
        pipe.transformer.blocks.get_submodule(name).weight.data += up @ down
    wanted = [request(**SMALL, steps=1)]
    got = denoised(model, wanted)[0]
    dispatch.interpret_on_cpu(on=False)
    family = family_of(type(pipe).__name__)
    assert family is not None
    exact = denoised(family(pipe, CPU), wanted)[0]
    assert relative_rms(got, exact) < (1e-5 if weights == "stored" else 2e-2)


def test_nothing_is_fused_where_triton_does_not_compute_and_the_report_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        _, reports = fused(wan())
    assert [report.fused for report in reports] == [None]
    assert "blocks as Diffusers has them: not on a GPU: cpu" in caplog.text


@pytest.mark.usefixtures("interpreter")
def test_the_report_names_what_was_fused_and_what_was_not() -> None:
    _, reports = fused(wan())
    assert str(reports[0]) == ("fused WanTransformerBlock ×3, to_q+to_k+to_v ×3, to_k+to_v ×3, norms ×12")

    class UnknownBlock(nn.Module):
        pass

    pipe = wan()
    pipe.transformer.blocks[1] = UnknownBlock()
    reports = prepare(pipe, "blocks", CPU, STORED)
    assert "not UnknownBlock ×1" in str(reports[0])
    assert type(pipe.transformer.blocks[1]) is UnknownBlock


def test_any_mask_is_a_length_of_tokens_in_another_order() -> None:
    context = torch.arange(8.0).view(2, 4, 1)
    mask = torch.tensor([[-1e4, 0, -1e4, 0], [-1e4] * 4]).unsqueeze(1)
    ordered, lengths = attended_first(context, mask)
    assert ordered[0, :2, 0].tolist() == [1.0, 3.0]
    assert lengths.tolist() == [2, 4], "a row of which nothing is seen sees all, as added to all scores alike"
