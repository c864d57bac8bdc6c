"""Divides a video transformer's tokens among devices: Diffusers' context parallelism (Ulysses, Jacobs et al. 2023).

Each device has all weights and a part of the tokens; around attention they exchange, so that each has all tokens of a
part of the heads. Does not know who says what is computed: see `tessera.diffusion.parallel.ranks`.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ContextParallelConfig, ParallelConfig
from diffusers.hooks.context_parallel import apply_context_parallel
from torch.distributed.device_mesh import init_device_mesh

from tessera.errors import ModelLoadError

DIVISIBLE = frozenset({"WanTransformer3DModel"})
"""Of the classes that we step and that Diffusers has a plan for. Not LTX's: Diffusers leaves the masks of its prompts
whole where heads are divided."""


def check_divisible(expert: Any, count: int) -> None:
    """Refuse a transformer that cannot be divided, before anything is.

    Raises:
        ModelLoadError: it is not of a class that can be, or its heads are not to be divided by `count`.
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
    """Let a transformer compute a part of its tokens here, and give whole results.

    Args:
        expert: whose blocks are behind the one that steps them (`SkippingBlocks`), as Diffusers has them.
        block_list: what it calls its blocks.
        rank: of this process in the default process group, of which all have the same transformer.
        count: of processes.
        place: this one's device.

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
