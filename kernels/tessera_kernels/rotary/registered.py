"""Registers `rotary` for torch.compile and CUDA graphs, and chooses the implementation that runs.

Checks no arguments: the public functions do. Shape letters: T tokens, H query heads, G key heads, D head dim,
F pairs, A axes, P table rows.
"""

from __future__ import annotations

import torch

from tessera_kernels.dispatch import triton_support
from tessera_kernels.rotary import reference


def compute(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    positions_TA: torch.Tensor,
    inverse_F: torch.Tensor,
    axis_F: torch.Tensor | None,
    interleaved: bool,
    scaling: float,
) -> None:
    """`rotary` by the fastest implementation for these tensors."""
    if not triton_support(query_THD, key_TGD, positions_TA, inverse_F, axis_F).ok:
        reference.rotary(query_THD, key_TGD, positions_TA, inverse_F, axis_F, interleaved, scaling)
        return
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - only where there is a GPU

    triton.rotary(
        query_THD,
        key_TGD,
        positions_TA.contiguous(),
        inverse_F.contiguous(),
        None if axis_F is None else axis_F.contiguous(),
        interleaved=interleaved,
        scaling=scaling,
    )


def compute_by_table(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    cos_PF: torch.Tensor,
    sin_PF: torch.Tensor,
    positions_T: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """`rotary_by_table` by the fastest implementation for these tensors."""
    if not triton_support(query_THD, key_TGD, cos_PF, sin_PF, positions_T).ok:
        reference.rotary_by_table(query_THD, key_TGD, cos_PF, sin_PF, positions_T, interleaved)
        return
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - only where there is a GPU

    triton.rotary(
        query_THD,
        key_TGD,
        None if positions_T is None else positions_T.contiguous(),
        cos_PF=cos_PF if cos_PF.stride(-1) == 1 else cos_PF.contiguous(),
        sin_PF=sin_PF if sin_PF.stride(-1) == 1 else sin_PF.contiguous(),
        interleaved=interleaved,
    )


def compute_tables(
    positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`tables` by the fastest implementation for these tensors."""
    if not triton_support(positions_TA, inverse_F, axis_F).ok:
        return reference.tables(positions_TA, inverse_F, axis_F, scaling)
    from tessera_kernels.rotary import triton  # noqa: PLC0415 - only where there is a GPU

    axis = None if axis_F is None else axis_F.contiguous()
    return triton.tables(positions_TA.contiguous(), inverse_F.contiguous(), axis, scaling)


@torch.library.custom_op("tessera::rotary_tables", mutates_args=())
def tables(
    positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op `tessera::rotary_tables`."""
    cos_TF, sin_TF = compute_tables(positions_TA, inverse_F, axis_F, scaling)
    return cos_TF.contiguous(), sin_TF.contiguous()


@tables.register_fake
def _(
    positions_TA: torch.Tensor,
    inverse_F: torch.Tensor,
    axis_F: torch.Tensor | None,  # noqa: ARG001
    scaling: float,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (positions_TA.shape[0], inverse_F.shape[0])
    return inverse_F.new_empty(shape), inverse_F.new_empty(shape)


@torch.library.custom_op("tessera::rotary", mutates_args={"query_THD", "key_TGD"})
def rotary(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    positions_TA: torch.Tensor,
    inverse_F: torch.Tensor,
    axis_F: torch.Tensor | None,
    interleaved: bool,
    scaling: float,
) -> None:
    """The op `tessera::rotary`."""
    compute(query_THD, key_TGD, positions_TA, inverse_F, axis_F, interleaved, scaling)


@rotary.register_fake
def _(
    query_THD: torch.Tensor,  # noqa: ARG001
    key_TGD: torch.Tensor | None,  # noqa: ARG001
    positions_TA: torch.Tensor,  # noqa: ARG001
    inverse_F: torch.Tensor,  # noqa: ARG001
    axis_F: torch.Tensor | None,  # noqa: ARG001
    interleaved: bool,  # noqa: ARG001
    scaling: float,  # noqa: ARG001
) -> None:
    return None


@torch.library.custom_op("tessera::rotary_by_table", mutates_args={"query_THD", "key_TGD"})
def rotary_by_table(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    cos_PF: torch.Tensor,
    sin_PF: torch.Tensor,
    positions_T: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """The op `tessera::rotary_by_table`."""
    compute_by_table(query_THD, key_TGD, cos_PF, sin_PF, positions_T, interleaved)


@rotary_by_table.register_fake
def _(
    query_THD: torch.Tensor,  # noqa: ARG001
    key_TGD: torch.Tensor | None,  # noqa: ARG001
    cos_PF: torch.Tensor,  # noqa: ARG001
    sin_PF: torch.Tensor,  # noqa: ARG001
    positions_T: torch.Tensor | None,  # noqa: ARG001
    interleaved: bool,  # noqa: ARG001
) -> None:
    return None
