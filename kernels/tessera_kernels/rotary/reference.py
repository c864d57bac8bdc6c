"""`rotary` in plain torch. Shape letters: T tokens, H heads, D head dim, F pairs, A axes, P table rows."""

from __future__ import annotations

import torch


def tables(
    positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `tessera_kernels.rotary.tables`."""
    positions = positions_TA.float() if positions_TA.dim() == 2 else positions_TA.float()[:, None]
    position_TF = positions[:, :1] if axis_F is None else positions[:, axis_F.long()]
    angle_TF = position_TF * inverse_F
    return angle_TF.cos() * scaling, angle_TF.sin() * scaling


def rotary(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    positions_TA: torch.Tensor,
    inverse_F: torch.Tensor,
    axis_F: torch.Tensor | None,
    interleaved: bool,
    scaling: float,
) -> None:
    """Reference of `tessera_kernels.rotary.rotary`."""
    cos_TF, sin_TF = tables(positions_TA, inverse_F, axis_F, scaling)
    for heads in (query_THD, key_TGD):
        if heads is not None:
            _rotate(heads, cos_TF, sin_TF, interleaved=interleaved)


def rotary_by_table(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    cos_PF: torch.Tensor,
    sin_PF: torch.Tensor,
    positions_T: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """Reference of `tessera_kernels.rotary.rotary_by_table`."""
    tokens = query_THD.shape[0]
    if not tokens:
        return
    if positions_T is None:
        cos_TF, sin_TF = (table.repeat(tokens // table.shape[0], 1) for table in (cos_PF, sin_PF))
    else:
        cos_TF, sin_TF = cos_PF[positions_T.long()], sin_PF[positions_T.long()]
    for heads in (query_THD, key_TGD):
        if heads is not None:
            _rotate(heads, cos_TF.float(), sin_TF.float(), interleaved=interleaved)


def _rotate(heads_THD: torch.Tensor, cos_TF: torch.Tensor, sin_TF: torch.Tensor, *, interleaved: bool) -> None:
    pairs = cos_TF.shape[-1]
    rotated = heads_THD[..., : 2 * pairs]
    first, second = (
        (rotated[..., ::2], rotated[..., 1::2]) if interleaved else (rotated[..., :pairs], rotated[..., pairs:])
    )
    x, y, cos, sin = first.float(), second.float(), cos_TF[:, None], sin_TF[:, None]
    rotated_first, rotated_second = x * cos - y * sin, x * sin + y * cos
    first.copy_(rotated_first)
    second.copy_(rotated_second)
