# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`rotary` in Triton: a program rotates some query heads or some key heads of one token.

Knows nothing of what axes mean or which requests tokens belong to. Shape letters: T tokens, H query heads, G key heads,
D head dim, F pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import tuning

FEW_TOKENS = 128
"""Largest number of tokens for which programs have fewer heads, to fill a device, and compute angles themselves.

For more tokens, angles are computed once, into tables: otherwise every program of a token would compute the same angles
again, which takes longer than moving the heads.
"""
TABLE_BLOCK = 256
"""Angles that one program of `tables_kernel` computes."""


@triton.jit
def _rotate(p_token, heads, head_stride, i_block, pairs, b_cos, b_sin, INTERLEAVED, BLOCK_H, BLOCK_F):
    """Rotate a block of heads of the token that starts at `p_token`."""
    i_h = i_block * BLOCK_H + tl.arange(0, BLOCK_H)
    p_heads = p_token + i_h.to(tl.int64)[:, None] * head_stride
    if INTERLEAVED:
        # Both elements of a pair are loaded together and split in registers, so loads and stores are coalesced.
        o_d = tl.arange(0, 2 * BLOCK_F)
        here = (i_h < heads)[:, None] & (o_d < 2 * pairs)[None, :]
        b_x = tl.load(p_heads + o_d[None, :], mask=here, other=0.0).to(tl.float32)
        b_first, b_second = tl.split(tl.reshape(b_x, (BLOCK_H, BLOCK_F, 2)))
        b_rotated = tl.join(b_first * b_cos - b_second * b_sin, b_first * b_sin + b_second * b_cos)
        b_out = tl.reshape(b_rotated, (BLOCK_H, 2 * BLOCK_F))
        tl.store(p_heads + o_d[None, :], b_out.to(p_token.dtype.element_ty), mask=here)
    else:
        o_f = tl.arange(0, BLOCK_F)
        here = (i_h < heads)[:, None] & (o_f < pairs)[None, :]
        p_first, p_second = p_heads + o_f[None, :], p_heads + pairs + o_f[None, :]
        b_first = tl.load(p_first, mask=here, other=0.0).to(tl.float32)
        b_second = tl.load(p_second, mask=here, other=0.0).to(tl.float32)
        tl.store(p_first, (b_first * b_cos - b_second * b_sin).to(p_token.dtype.element_ty), mask=here)
        tl.store(p_second, (b_first * b_sin + b_second * b_cos).to(p_token.dtype.element_ty), mask=here)


@triton.jit
def _angles(p_positions, p_inverse, p_axis, token, axes, o_f, here):
    """Angles of the frequencies `o_f` for a token, or for a block of tokens."""
    o_axis = tl.zeros_like(o_f)
    if p_axis is not None:
        o_axis = tl.load(p_axis + o_f, mask=here, other=0)
    b_position = tl.load(p_positions + token * axes + o_axis, mask=here, other=0).to(tl.float32)
    return b_position * tl.load(p_inverse + o_f, mask=here, other=0.0)


@triton.jit(do_not_specialize=["scaling"])
def tables_kernel(p_positions, p_inverse, p_axis, p_cos, p_sin, count, pairs, axes, scaling, BLOCK: tl.constexpr):
    """Write cosines and sines of the angles of all tokens, [T, F]."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < count
    b_angle = _angles(p_positions, p_inverse, p_axis, i // pairs, axes, (i % pairs).to(tl.int32), here)
    tl.store(p_cos + i, tl.cos(b_angle) * scaling, mask=here)
    tl.store(p_sin + i, tl.sin(b_angle) * scaling, mask=here)


@triton.jit(do_not_specialize=["scaling"])
def rotary_kernel(
    p_query,
    p_key,
    p_positions,
    p_inverse,
    p_axis,
    p_cos,
    p_sin,
    query_heads,
    key_heads,
    pairs,
    axes,
    table_rows,
    query_stride_t,
    query_stride_h,
    key_stride_t,
    key_stride_h,
    cos_stride,
    sin_stride,
    scaling,
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Program (t, b) rotates block b of the heads of token t; blocks of query heads come before blocks of key heads."""
    token = tl.program_id(0).to(tl.int64)
    i_block = tl.program_id(1)
    o_f = tl.arange(0, BLOCK_F)
    here = o_f < pairs
    if p_cos is not None:
        row = token % table_rows
        if p_positions is not None:
            row = tl.load(p_positions + token).to(tl.int64)
        b_cos = tl.load(p_cos + row * cos_stride + o_f, mask=here, other=0.0).to(tl.float32)[None, :]
        b_sin = tl.load(p_sin + row * sin_stride + o_f, mask=here, other=0.0).to(tl.float32)[None, :]
    else:
        b_angle = _angles(p_positions, p_inverse, p_axis, token, axes, o_f, here)
        b_cos, b_sin = (tl.cos(b_angle) * scaling)[None, :], (tl.sin(b_angle) * scaling)[None, :]
    query_blocks = tl.cdiv(query_heads, BLOCK_H)
    if i_block < query_blocks:
        p_token = p_query + token * query_stride_t
        _rotate(p_token, query_heads, query_stride_h, i_block, pairs, b_cos, b_sin, INTERLEAVED, BLOCK_H, BLOCK_F)
    else:
        p_token = p_key + token * key_stride_t
        i_block -= query_blocks
        _rotate(p_token, key_heads, key_stride_h, i_block, pairs, b_cos, b_sin, INTERLEAVED, BLOCK_H, BLOCK_F)


def bucket(tokens: int, heads: int, pairs: int) -> str:
    """Name of the bucket of shapes, as it appears in tuned files; `heads` counts query heads."""
    return f"H{heads} F{pairs} {'few' if tokens <= FEW_TOKENS else 'many'}"


def config(tokens: int, heads: int, pairs: int, dtype: torch.dtype) -> Mapping[str, int]:
    """The launch configuration: `BLOCK_H` and `num_warps`."""
    name = bucket(tokens, heads, pairs)
    tuned = tuning.lookup("rotary", tuning.device_here(), str(dtype).removeprefix("torch."), name)
    return tuned or heuristic(tokens, heads, pairs)


def heuristic(tokens: int, heads: int, pairs: int) -> Mapping[str, int]:
    """Configuration without a tuned entry: all heads of a token up to 4,096 elements, 16 pairs for each thread.

    With few tokens, blocks have up to 1,024 elements.
    """
    largest = (512 if tokens <= FEW_TOKENS else 2048) // triton.next_power_of_2(pairs)
    together = max(1, min(triton.next_power_of_2(heads), largest))
    warps = together * triton.next_power_of_2(pairs) // 512
    return {"BLOCK_H": together, "num_warps": max(1, min(warps, 8))}


def candidates(tokens: int, pairs: int) -> list[Mapping[str, int]]:
    """Configurations to tune: 4 to 16 pairs for each thread; small programs if each computes its angles."""
    block = triton.next_power_of_2(pairs)
    few = tokens <= FEW_TOKENS
    return [
        {"BLOCK_H": together, "num_warps": warps}
        for together in ((2, 4, 8) if few else (4, 8, 16, 32, 64))
        for warps in ((1, 2) if few else (1, 2, 4, 8))
        if 4 <= together * block // (32 * warps) <= 16
    ]


def tables(
    positions_TA: torch.Tensor, inverse_F: torch.Tensor, axis_F: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32 [tokens, pairs], of contiguous arguments as in the public function."""
    tokens, pairs = positions_TA.shape[0], inverse_F.shape[0]
    cos_TF, sin_TF = inverse_F.new_empty(tokens, pairs), inverse_F.new_empty(tokens, pairs)
    if cos_TF.numel():
        tables_kernel[(triton.cdiv(cos_TF.numel(), TABLE_BLOCK),)](
            positions_TA,
            inverse_F,
            axis_F,
            cos_TF,
            sin_TF,
            cos_TF.numel(),
            pairs,
            positions_TA.shape[1] if positions_TA.dim() == 2 else 1,
            scaling,
            BLOCK=TABLE_BLOCK,
            num_warps=4,
        )
    return cos_TF, sin_TF


def rotary(
    query_THD: torch.Tensor,
    key_TGD: torch.Tensor | None,
    positions: torch.Tensor | None,
    inverse_F: torch.Tensor | None = None,
    axis_F: torch.Tensor | None = None,
    cos_PF: torch.Tensor | None = None,
    sin_PF: torch.Tensor | None = None,
    *,
    interleaved: bool,
    scaling: float = 1.0,
    configuration: Mapping[str, int] | None = None,
) -> None:
    """Rotate queries and keys in place, by tables if they are given, else by inverse frequencies.

    Args:
        query_THD: stride 1 of the last dim.
        key_TGD: stride 1 of the last dim; None to rotate queries alone.
        positions: [tokens] or [tokens, axes], contiguous; with tables, the row of each token, or None for row t % P.
        inverse_F: float32, contiguous; None with tables.
        axis_F: int32, contiguous; None for axis 0.
        cos_PF: contiguous pairs; None to compute angles.
        sin_PF: contiguous pairs; None to compute angles.
        interleaved: whether pair f is the elements (2f, 2f + 1), and not (f, f + F).
        scaling: factor on cosine and sine that are computed; tables are used as they are.
        configuration: launch configuration; the result of `config` if not given.
    """
    tokens, heads, _ = query_THD.shape
    key = query_THD[:, :0] if key_TGD is None else key_TGD
    table = cos_PF if cos_PF is not None else inverse_F
    assert table is not None, "angles are computed from inverse frequencies or looked up in tables"
    pairs = table.shape[-1]
    if tokens == 0 or pairs == 0 or heads + key.shape[1] == 0:
        return
    if cos_PF is None and tokens > FEW_TOKENS:
        assert positions is not None
        cos_PF, sin_PF = tables(positions, table, axis_F, scaling)
        positions = inverse_F = axis_F = None
    how = dict(configuration or config(tokens, heads, pairs, query_THD.dtype))
    blocks = triton.cdiv(heads, how["BLOCK_H"]) + triton.cdiv(key.shape[1], how["BLOCK_H"])
    rotary_kernel[(tokens, blocks)](
        query_THD,
        key,
        positions,
        inverse_F,
        axis_F,
        cos_PF,
        sin_PF,
        heads,
        key.shape[1],
        pairs,
        positions.shape[1] if positions is not None and positions.dim() == 2 else 1,
        1 if cos_PF is None else cos_PF.shape[0],
        *query_THD.stride()[:2],
        *key.stride()[:2],
        0 if cos_PF is None else cos_PF.stride(0),
        0 if sin_PF is None else sin_PF.stride(0),
        scaling,
        INTERLEAVED=interleaved,
        BLOCK_F=triton.next_power_of_2(pairs),
        **how,
    )
