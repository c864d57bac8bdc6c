"""Divides a video transformer's tokens among devices: Diffusers' context parallelism (Ulysses, Jacobs et al. 2023).

Each device has all weights and a part of the tokens. Around attention the devices exchange tokens for heads, so that
each has all tokens of a part of the heads. Does not know who starts a pass (`tessera.diffusion.parallel.ranks` does).
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ContextParallelConfig, ParallelConfig
from diffusers.hooks.context_parallel import apply_context_parallel
from torch.distributed.device_mesh import init_device_mesh

from tessera.errors import ModelLoadError

DIVISIBLE = frozenset({"WanTransformer3DModel"})
"""Transformer classes that are divided: those with a step loop of ours and a plan of Diffusers. LTX's is not one:
Diffusers does not divide the masks of its prompts where it divides the heads."""


def check_divisible(expert: Any, count: int) -> None:
    """Refuse a transformer that cannot be divided.

    Raises:
        ModelLoadError: its class cannot be divided, or its number of heads is not divisible by `count`.
    """
    if type(expert).__name__ not in DIVISIBLE:
        raise ModelLoadError(f"a {type(expert).__name__} cannot be divided among devices: set `video.devices` to 1")
    heads = expert.config.num_attention_heads
    if heads % count:
        raise ModelLoadError(
            f"the {heads} heads of this {type(expert).__name__} are not to be divided among {count} devices: set "
            f"`video.devices` to a divisor"
        )


def divide(expert: Any, block_list: str, *, rank: int, count: int, place: torch.device) -> None:
    """Let a transformer compute this rank's part of the tokens, and return whole results on every rank.

    Args:
        expert: a transformer with Diffusers' own blocks inside `SkippingBlocks`.
        block_list: name of the attribute that holds its blocks.
        rank: this process in the default process group, 0 to `count` - 1. All ranks have the same transformer.
        count: number of ranks.
        place: this rank's device.

    Raises:
        ModelLoadError: see `check_divisible`.
    """
    check_divisible(expert, count)
    config = ContextParallelConfig(ulysses_degree=count, ulysses_anything=True)
    mesh = init_device_mesh(place.type, config.mesh_shape, mesh_dim_names=config.mesh_dim_names)
    parallel = ParallelConfig(context_parallel_config=config)
    parallel.setup(rank, count, place, mesh=mesh)
    for module in expert.modules():
        processor: Any = getattr(module, "processor", None)
        if hasattr(processor, "_parallel_config"):
            processor._parallel_config = parallel
    inner = f"{block_list}.0.blocks."
    plan = {name.replace(f"{block_list}.", inner): part for name, part in expert._cp_plan.items()}
    apply_context_parallel(expert, config, plan)
