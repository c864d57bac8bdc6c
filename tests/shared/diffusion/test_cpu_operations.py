"""Fast CPU operations of a VAE and a transformer give the results of Diffusers' own operations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from tests.shared.diffusion.tiny_models import cogvideox, hunyuan, ltx, wan

from tessera.diffusion.loading.cpu import pack_products, use_fast_operations
from tessera.models.cpu_linear import PackedLinear, pack_linears
from tessera.models.lora import Adapters, LowRank


@pytest.mark.parametrize("make", [wan, ltx, cogvideox, hunyuan])
@torch.inference_mode()
def test_clips_and_latents_are_those_of_diffusers(make: Callable[[], Any]) -> None:
    slow = make().vae
    fast = copy.deepcopy(slow)
    assert use_fast_operations(fast) > 0
    torch.manual_seed(0)
    clip = torch.rand(1, 3, 9, 32, 32) * 2 - 1
    wanted = slow.encode(clip).latent_dist.mode()
    found = fast.encode(clip).latent_dist.mode()
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()
    latents = torch.randn_like(wanted)
    wanted, found = (vae.decode(latents, return_dict=False)[0] for vae in (slow, fast))
    assert (found - wanted).abs().max() < 2e-5
    assert not torch.equal(found, wanted), "the fast ways were taken"


def test_modules_get_the_fast_operations_once() -> None:
    vae = wan().vae
    kinds = (torch.nn.Conv2d, torch.nn.Conv3d, WanRMS_norm)
    assert use_fast_operations(vae) == sum(isinstance(module, kinds) for module in vae.modules())
    assert use_fast_operations(vae) == 0


@torch.inference_mode()
def test_other_precisions_are_computed_as_before() -> None:
    slow = wan().vae.to(torch.bfloat16)
    fast = copy.deepcopy(slow)
    use_fast_operations(fast)
    latents = torch.randn(1, slow.config.z_dim, 2, 4, 4).to(torch.bfloat16)
    assert torch.equal(slow.decode(latents)[0], fast.decode(latents)[0])


@torch.inference_mode()
def test_a_pixel_of_zeros_stays_zeros_and_what_is_not_finite_stays_where_it_is() -> None:
    norm = WanRMS_norm(4, images=False)
    parts = torch.nn.ModuleList([norm, diffusers.AutoencoderKLWan(base_dim=4, z_dim=4).decoder.conv_in])
    use_fast_operations(parts)
    x = torch.ones(1, 4, 1, 2, 2)
    x[:, :, 0, 0, 0], x[0, 1, 0, 1, 1] = 0, torch.nan
    found = norm(x)
    assert found[0, :, 0, 0, 0].eq(0).all()
    assert found.isfinite().all(1)[0, 0].tolist() == [[True, True], [True, False]]


@torch.inference_mode()
def test_a_packed_layer_is_the_layer_for_any_number_of_rows() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(96, 160), torch.nn.Linear(160, 64, bias=False))
    x = torch.randn(2, 150, 96)
    wanted = model(x)
    assert pack_linears(torch.nn.Sequential(torch.nn.Linear(64, 8))) == 0, "a small one stays"
    assert pack_linears(model) == 2
    assert [layer.nbytes for layer in model] == [4 * (160 * 96 + 160), 4 * 160 * 64]
    found = model(x)
    assert (found - wanted).abs().max() < 1e-5
    for rows in (1, 2, 17, 149):
        assert (model(x[:1, :rows]) - found[:1, :rows]).abs().max() < 1e-6
    assert model(x[:, :0]).shape == (2, 0, 64)
    assert (model(x.transpose(0, 1))[3] - model(x[:, 3])).abs().max() < 1e-6
    others = torch.nn.Sequential(torch.nn.Linear(96, 96).to(torch.bfloat16), torch.nn.Linear(96, 96, device="meta"))
    assert pack_linears(others) == 0


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@torch.inference_mode()
def test_gelu_is_part_of_the_product_unless_an_adapter_adds_to_it(approximate: str) -> None:
    torch.manual_seed(2)
    part = diffusers.models.attention.FeedForward(
        64, activation_fn="gelu" if approximate == "none" else "gelu-approximate"
    )
    x = torch.randn(3, 10, 64)
    wanted = part(x)
    low_rank = LowRank(torch.randn(2, 64), torch.randn(256, 2), None, 0.5)
    changed = copy.deepcopy(part)
    changed.net[0].proj.weight += 0.5 * low_rank.up_OR @ low_rank.down_RI
    wanted_changed = changed(x)
    assert pack_products(part) == 2
    assert (part(x) - wanted).abs().max() < 1e-5
    assert type(part.net[0].proj) is PackedLinear
    adapters = Adapters()
    adapters.add("a", "", {part.net[0].proj: low_rank})
    assert (part(x) - wanted).abs().max() < 1e-5
    with adapters.running((("a", 1.0),)):
        assert (part(x) - wanted_changed).abs().max() < 1e-4
