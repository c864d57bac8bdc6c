"""Rotary position embedding (Su et al. 2021) of queries and keys, in place and in one launch on a GPU.

Pair f of a head is turned by an angle: `position · inverse frequency`, or one whose cosine and sine a table has. In
text a position is one number. In images and video it has two or three, and each frequency belongs to one of these axes
(Wan and CogVideoX: a run of frequencies an axis; Qwen-VL too, or in turns). Does not know frequencies of models. T
tokens, H query heads, G key heads, D head dim, F pairs (2F <= D are turned, the others stay), A axes, P table rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera_kernels.rotary import registered

__all__ = ["axes_of", "rotary", "rotary_by_table", "tables"]

POSITIONS = (torch.int32, torch.int64, torch.float32)


def rotary(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    positions_TA: torch.Tensor,
    inverse_F: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    scaling: float = 1.0,
) -> None:
    """Turn the first 2F numbers of every head by positions times inverse frequencies, in float32 inside.

    Args:
        query_THD: any float dtype, any strides but of the last axis, 1; in place. Slices of packed q/k/v will do.
        key_TGD: likewise; None to turn queries alone.
        positions_TA: [tokens] or [tokens, axes], int32, int64 or float32, contiguous.
        inverse_F: float32, radians for each position.
        axis_F: int32, which axis each frequency belongs to, in [0, axes) (see `axes_of`); None for axis 0.
        interleaved: whether pairs are neighbours, (2f, 2f + 1), or halves of what is turned, (f, f + F).
        scaling: of cosine and sine (YaRN's attention factor).

    Raises:
        ValueError: shapes, strides or dtypes do not fit.
    """
    _check_heads(query_THD, key_TGD, inverse_F.shape[-1])
    _check_angles(query_THD.shape[0], positions_TA, inverse_F, axis_F)
    call = registered.rotary if torch.compiler.is_compiling() else registered.compute
    call(query_THD, key_TGD, positions_TA, inverse_F, axis_F, interleaved, scaling)


def tables(
    positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None = None, *, scaling: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions times inverse frequencies, for `rotary_by_table`: made once for all layers.

    Args:
        positions_TA: as in `rotary`.
        inverse_F: as in `rotary`.
        axis_F: as in `rotary`.
        scaling: of both.

    Returns:
        Cosines and sines, float32 [tokens, pairs].

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    _check_angles(positions_TA.shape[0], positions_TA, inverse_F, axis_F)
    if torch.compiler.is_compiling():
        made: tuple[torch.Tensor, torch.Tensor] = registered.tables(positions_TA, inverse_F, axis_F, scaling)
        return made
    return registered.compute_tables(positions_TA, inverse_F, axis_F, scaling)


def rotary_by_table(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    cos_PF: torch.Tensor,
    sin_PF: torch.Tensor,
    positions_T: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
) -> None:
    """Turn the first 2F numbers of every head by angles whose cosines and sines are in tables.

    Args:
        query_THD: any float dtype, any strides but of the last axis, 1; in place.
        key_TGD: likewise; None to turn queries alone.
        cos_PF: any float dtype, a cosine for each *pair*: of tables that repeat them, a slice (`[:, :F]`, `[:, ::2]`).
        sin_PF: likewise.
        positions_T: which row is for which token, int32 or int64 in [0, rows), which is not checked on a GPU; None
            for row t % P, as where samples of a video share one table.
        interleaved: whether pairs are neighbours, (2f, 2f + 1), or halves of what is turned, (f, f + F).

    Raises:
        ValueError: shapes, strides or dtypes do not fit.
    """
    _check_heads(query_THD, key_TGD, cos_PF.shape[-1])
    if cos_PF.dim() != 2 or cos_PF.shape != sin_PF.shape or cos_PF.dtype != sin_PF.dtype:
        raise ValueError(
            f"tables must be two alike [rows, pairs], not {cos_PF.dtype} {tuple(cos_PF.shape)} "
            f"and {sin_PF.dtype} {tuple(sin_PF.shape)}"
        )
    tokens, rows = query_THD.shape[0], cos_PF.shape[0]
    if positions_T is None:
        if tokens and (not rows or tokens % rows):
            raise ValueError(f"without positions a table's rows must divide the tokens: {tokens} by {rows}")
    elif positions_T.shape != (tokens,) or positions_T.dtype not in {torch.int32, torch.int64}:
        raise ValueError(
            f"positions must be [{tokens}] of int32 or int64, not {positions_T.dtype} {tuple(positions_T.shape)}"
        )
    call = registered.rotary_by_table if torch.compiler.is_compiling() else registered.compute_by_table
    call(query_THD, key_TGD, cos_PF, sin_PF, positions_T, interleaved)


def axes_of(sections: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """The axis of each frequency, int32, where each axis has a run of them: (22, 21, 21) for Wan's heads of 128."""
    return torch.repeat_interleave(torch.arange(len(sections), dtype=torch.int32), torch.tensor(list(sections))).to(
        device
    )


def _check_heads(query_THD: torch.Tensor, key_TGD: torch.Tensor | None, pairs: int) -> None:
    for name, heads in (("queries", query_THD), ("keys", key_TGD)):
        if heads is None:
            continue
        if heads.dim() != 3 or 2 * pairs > heads.shape[-1]:
            raise ValueError(f"{name} must be [tokens, heads, at least {2 * pairs}], not {tuple(heads.shape)}")
        if heads.stride(-1) != 1:
            raise ValueError(f"{name} must have contiguous heads: their strides are {heads.stride()}")
    if key_TGD is not None and (key_TGD.shape[0] != query_THD.shape[0] or key_TGD.dtype != query_THD.dtype):
        raise ValueError(
            f"keys must be as queries, {query_THD.dtype} of {query_THD.shape[0]} tokens, "
            f"not {key_TGD.dtype} of {key_TGD.shape[0]}"
        )


def _check_angles(
    tokens: int, positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None
) -> None:
    if positions_TA.dtype not in POSITIONS or positions_TA.dim() not in {1, 2} or len(positions_TA) != tokens:
        raise ValueError(
            f"positions must be [{tokens}] or [{tokens}, axes] of int32, int64 or float32, "
            f"not {positions_TA.dtype} {tuple(positions_TA.shape)}"
        )
    if inverse_F.dim() != 1 or inverse_F.dtype != torch.float32:
        raise ValueError(f"inverse frequencies must be float32 [pairs], not {inverse_F.dtype} {tuple(inverse_F.shape)}")
    if axis_F is not None and (axis_F.shape != inverse_F.shape or axis_F.dtype != torch.int32):
        raise ValueError(f"axes must be int32 {tuple(inverse_F.shape)}, not {axis_F.dtype} {tuple(axis_F.shape)}")
