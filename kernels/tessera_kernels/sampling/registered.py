"""Registers `sample` for torch.compile and CUDA graphs, and chooses the implementation that runs.

Checks no arguments: the public function does. Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.sampling import reference


def compute(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    seed_B: torch.Tensor,
    position_B: torch.Tensor,
    counts_BV: torch.Tensor | None,
    repetition_B: torch.Tensor | None,
    presence_B: torch.Tensor | None,
    frequency_B: torch.Tensor | None,
) -> torch.Tensor:
    """`sample` by the fastest implementation for these tensors."""
    settings = (temperature_B, top_k_B, top_p_B, min_p_B, seed_B, position_B)
    penalties = (repetition_B, presence_B, frequency_B)
    if not triton_support(logits_BV, counts_BV, *settings, *penalties).ok:
        return reference.sample(logits_BV, *settings, counts_BV, *penalties)
    from tessera_kernels.sampling import triton  # noqa: PLC0415 - only where there is a GPU

    taken = [None if tensor is None else tensor.contiguous() for tensor in penalties]
    return triton.sample(
        logits_BV,
        temperature_B.contiguous(),
        top_k_B.contiguous(),
        top_p_B.contiguous(),
        min_p_B.contiguous(),
        seed_B.contiguous(),
        position_B.contiguous(),
        counts_BV,
        *taken,
    )


@torch.library.custom_op("tessera::sample", mutates_args=())
def sample(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    seed_B: torch.Tensor,
    position_B: torch.Tensor,
    counts_BV: torch.Tensor | None,
    repetition_B: torch.Tensor | None,
    presence_B: torch.Tensor | None,
    frequency_B: torch.Tensor | None,
) -> torch.Tensor:
    """The op `tessera::sample`."""
    return compute(
        logits_BV,
        temperature_B,
        top_k_B,
        top_p_B,
        min_p_B,
        seed_B,
        position_B,
        counts_BV,
        repetition_B,
        presence_B,
        frequency_B,
    )


@sample.register_fake
def _(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,  # noqa: ARG001
    top_k_B: torch.Tensor,  # noqa: ARG001
    top_p_B: torch.Tensor,  # noqa: ARG001
    min_p_B: torch.Tensor,  # noqa: ARG001
    seed_B: torch.Tensor,  # noqa: ARG001
    position_B: torch.Tensor,  # noqa: ARG001
    counts_BV: torch.Tensor | None,  # noqa: ARG001
    repetition_B: torch.Tensor | None,  # noqa: ARG001
    presence_B: torch.Tensor | None,  # noqa: ARG001
    frequency_B: torch.Tensor | None,  # noqa: ARG001
) -> torch.Tensor:
    return logits_BV.new_empty(logits_BV.shape[0], dtype=torch.int64)
