"""Rotary position embedding (Su et al. 2021) of queries and keys, in place and in one launch on a GPU.

Pair f of a head is rotated by an angle: `position · inverse frequency`, or an angle whose cosine and sine are in a
table. A position has one coordinate in text, and two or three in images and video, where each frequency belongs to one
of these axes (Wan and CogVideoX: a run of frequencies for each axis; Qwen-VL: a run, or axes in turns). Knows nothing
of the frequencies of models.

Shape letters: T tokens, H query heads, G key heads, D head dim, F pairs (the first 2F <= D elements are rotated, the
others are not changed), A axes, P table rows.
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
    """Rotate the first 2F elements of every head by positions times inverse frequencies, computed in float32, in place.

    Args:
        query_THD: any float dtype and any strides, but stride 1 of the last dim; slices of packed q/k/v fit.
        key_TGD: keys, as queries; None to rotate queries alone.
        positions_TA: [tokens] or [tokens, axes], int32, int64 or float32, contiguous.
        inverse_F: float32, inverse frequencies in radians for each step of a position.
        axis_F: int32, the axis of each frequency in [0, axes), as from `axes_of`; None for axis 0.
        interleaved: whether pair f is the elements (2f, 2f + 1), and not (f, f + F).
        scaling: factor on cosine and sine (YaRN's attention factor).

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
    """Cosines and sines of positions times inverse frequencies, computed once for `rotary_by_table` in all layers.

    Args:
        positions_TA: as in `rotary`.
        inverse_F: as in `rotary`.
        axis_F: as in `rotary`.
        scaling: factor on both.

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
    """Rotate the first 2F elements of every head by angles whose cosines and sines are in tables, in place.

    Args:
        query_THD: any float dtype and any strides, but stride 1 of the last dim.
        key_TGD: keys, as queries; None to rotate queries alone.
        cos_PF: any float dtype, one cosine for each *pair*; pass a slice of tables that repeat them (`[:, :F]`,
            `[:, ::2]`).
        sin_PF: sines, as cosines.
        positions_T: int32 or int64, the table row of each token in [0, rows), which is not checked on a GPU; None for
            row t % P, for example if the samples of a video share one table.
        interleaved: whether pair f is the elements (2f, 2f + 1), and not (f, f + F).

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
    """The axis of each frequency, int32, if each axis has a run of frequencies ((22, 21, 21) in Wan's heads)."""
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
