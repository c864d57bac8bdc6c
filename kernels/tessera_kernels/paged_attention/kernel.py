# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The kernel of `paged_attention`: online softmax (Milakov & Gimelshein 2018) over pages; one program per tile of rows.

The rows of a tile are tokens × the query heads of one key-value head, so that a key is read once for all of them.
Shape letters: M rows of a tile, N positions of a block, D head dim, E value dim. Knows nothing about how tiles are cut.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(a, b, INTERPRETED: tl.constexpr):
    """a @ b in the dtype of `a`. In float32 in the interpreter, whose bfloat16 and int8 are wrong."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    else:
        b = b.to(a.dtype)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _rows(at, stored, o_d, DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Elements [N, D]; zeros where nothing is stored, because unused slots may hold NaN."""
    if MASKED:
        b_rows = tl.load(at, mask=stored[:, None] & (o_d < DIM)[None, :], other=0.0)
    elif DIM == BLOCK_D:
        b_rows = tl.load(at)
    else:
        b_rows = tl.load(at, mask=(o_d < DIM)[None, :], other=0.0)
    return b_rows


@triton.jit
def _span(
    b_q,
    b_acc,
    b_largest,
    b_sum,
    p_key,
    p_value,
    p_key_scale,
    p_value_scale,
    p_pages,
    p_tree,
    tree_stride,
    begin,
    end,
    first,
    prefix,
    window,
    i_token,
    i_h,
    scaling,
    softcap,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Online softmax over the positions begin … end-1, block by block; unless MASKED all rows see all of them."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    o_n = tl.arange(0, BLOCK_N)
    o_d = tl.arange(0, BLOCK_D)
    o_e = tl.arange(0, BLOCK_E)
    for start in range(begin, end, BLOCK_N):
        i_n = start + o_n
        stored = (i_n >= first) & (i_n < end)
        i_page = tl.load(p_pages + i_n // PAGE, mask=stored, other=0) if MASKED else tl.load(p_pages + i_n // PAGE)
        i_slot = (i_page.to(tl.int64) * PAGE + i_n % PAGE) * HEADS + i_h
        key_at = p_key + i_slot[:, None] * DIM + o_d[None, :]
        value_at = p_value + i_slot[:, None] * VALUE_DIM + o_e[None, :]
        b_k = _rows(key_at, stored, o_d, DIM, BLOCK_D, MASKED)
        b_v = _rows(value_at, stored, o_e, VALUE_DIM, BLOCK_E, MASKED)
        b_s = _product(b_q, tl.trans(b_k), INTERPRETED) * scaling
        if p_key_scale is not None:
            b_s *= tl.load(p_key_scale + i_slot, mask=stored, other=0)[None, :]
        if SOFTCAP:
            b_s = softcap * (1 - 2 / (tl.exp(2 * (b_s / softcap)) + 1))
        b_s *= LOG2_E
        if MASKED:
            i_own = prefix + i_token
            if p_tree is not None:
                i_draft = i_n - prefix
                drafted = stored & (i_draft >= 0)
                tree_at = p_tree + i_token[:, None] * tree_stride + i_draft[None, :]
                # Rows behind the sequence's last one have no row in the tree; their outputs are not stored.
                b_tree = tl.load(tree_at, mask=drafted[None, :] & (i_token < tree_stride)[:, None], other=0)
                seen = stored[None, :] & ((i_draft < 0)[None, :] | (b_tree != 0))
            else:
                seen = stored[None, :] & (i_n[None, :] <= i_own[:, None])
            if WINDOW:
                seen = seen & (i_n[None, :] > i_own[:, None] - window)
            b_s = tl.where(seen, b_s, float("-inf"))
        b_new = tl.maximum(b_largest, tl.max(b_s, axis=1))
        # A row that has seen nothing yet would be -inf - -inf.
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_p = tl.exp2(b_s - b_base[:, None])
        b_rescale = tl.exp2(b_largest - b_base)
        b_sum = b_sum * b_rescale + tl.sum(b_p, axis=1)
        b_acc = b_acc * b_rescale[:, None]
        b_largest = b_new
        if p_value_scale is not None:
            b_scale = tl.load(p_value_scale + i_slot, mask=stored, other=0)
            if b_q.dtype == tl.float16:
                # Softmax weights times scales could leave the range of float16.
                b_v = b_v.to(tl.float32) * b_scale[:, None]
            else:
                b_p *= b_scale[None, :]
        b_acc += _product(b_p.to(b_q.dtype), b_v, INTERPRETED)
    return b_acc, b_largest, b_sum


@triton.jit
def paged_attention_kernel(
    p_query,
    p_key,
    p_value,
    p_key_scale,
    p_value_scale,
    p_table,
    p_context,
    p_tiles,
    p_tree,
    p_sinks,
    p_out,
    p_partial,
    p_lse,
    query_stride_t,
    query_stride_q,
    out_stride_t,
    out_stride_q,
    table_stride,
    tree_stride,
    rows,
    scaling,
    window,
    softcap,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """One program computes a tile for one key-value head over one part of the positions.

    Without a tile table each sequence is one tile of `rows` rows.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    i_tile = tl.program_id(0)
    i_h = tl.program_id(1)
    part = tl.program_id(2)
    if p_tiles is None:
        sequence = i_tile
        row = i_tile * rows
        index = 0
        count = rows
        place = row
    else:
        sequence = tl.load(p_tiles + i_tile * 5)
        row = tl.load(p_tiles + i_tile * 5 + 1)
        index = tl.load(p_tiles + i_tile * 5 + 2)
        count = tl.load(p_tiles + i_tile * 5 + 3)
        place = tl.load(p_tiles + i_tile * 5 + 4)
    context = tl.load(p_context + sequence).to(tl.int32)
    prefix = context - count
    TOKENS: tl.constexpr = BLOCK_M // GROUPS
    o_m = tl.arange(0, BLOCK_M)
    o_t = o_m // GROUPS
    i_q = i_h * GROUPS + o_m % GROUPS
    i_token = index + o_t
    ours = (o_t < TOKENS) & (i_token < count)

    last = prefix + tl.minimum(index + TOKENS, count)
    everyone = prefix + index + 1
    if p_tree is not None:
        last = context
        everyone = prefix
    first = 0
    if WINDOW:
        first = tl.maximum(prefix + index - window + 1, 0)
    begin = first // BLOCK_N * BLOCK_N
    end = last
    if PARTS > 1:
        if place >= 0:
            length = tl.cdiv(tl.cdiv(last - begin, PARTS), BLOCK_N) * BLOCK_N
            begin += part * length
            end = tl.minimum(begin + length, last)
        else:
            # Sequences of several tiles are not split: the first part has all their positions.
            end = tl.where(part == 0, last, begin)
            if part > 0:
                return

    o_d = tl.arange(0, BLOCK_D)
    o_e = tl.arange(0, BLOCK_E)
    i_row = row.to(tl.int64) + o_t
    query_at = p_query + i_row[:, None] * query_stride_t + i_q[:, None] * query_stride_q + o_d[None, :]
    b_q = tl.load(query_at, mask=ours[:, None] & (o_d < DIM)[None, :], other=0.0)
    b_acc = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    b_largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    p_pages = p_table + sequence.to(tl.int64) * table_stride
    if p_tree is not None:
        p_tree += sequence.to(tl.int64) * tree_stride * tree_stride

    # Blocks that all rows see entirely come first and need no mask. A window has few blocks: all are masked.
    middle = begin
    if not WINDOW:
        middle = tl.maximum(tl.minimum(everyone, end) // BLOCK_N * BLOCK_N, begin)
    for masked in tl.static_range(1 if WINDOW else 0, 2):
        b_acc, b_largest, b_sum = _span(
            b_q,
            b_acc,
            b_largest,
            b_sum,
            p_key,
            p_value,
            p_key_scale,
            p_value_scale,
            p_pages,
            p_tree,
            tree_stride,
            middle if masked else begin,
            end if masked else middle,
            first,
            prefix,
            window,
            i_token,
            i_h,
            scaling,
            softcap,
            HEADS,
            DIM,
            VALUE_DIM,
            PAGE,
            BLOCK_N,
            BLOCK_D,
            BLOCK_E,
            WINDOW,
            SOFTCAP,
            masked,
            INTERPRETED,
        )

    stored = ours[:, None] & (o_e < VALUE_DIM)[None, :]
    if PARTS > 1:  # noqa: SIM102 - the outer condition is decided at compile time
        if place >= 0:
            i_part = ((place.to(tl.int64) + o_t) * PARTS + part) * (HEADS * GROUPS) + i_q
            b_lse = tl.where(b_sum == 0, float("-inf"), b_largest + tl.log2(b_sum))
            tl.store(p_lse + i_part, b_lse, mask=ours)
            stored = stored & (b_lse != float("-inf"))[:, None]
            tl.store(p_partial + i_part[:, None] * VALUE_DIM + o_e[None, :], b_acc / b_sum[:, None], mask=stored)
            return
    if p_sinks is not None:
        b_sink = tl.load(p_sinks + i_q, mask=ours, other=0).to(tl.float32) * LOG2_E
        b_top = tl.maximum(b_largest, b_sink)
        b_rescale = tl.exp2(b_largest - b_top)
        b_sum = b_sum * b_rescale + tl.exp2(b_sink - b_top)
        b_acc = b_acc * b_rescale[:, None]
    out_at = p_out + i_row[:, None] * out_stride_t + i_q[:, None] * out_stride_q + o_e[None, :]
    tl.store(out_at, (b_acc / b_sum[:, None]).to(p_out.dtype.element_ty), mask=stored)
