# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""`sample` in Triton: one launch with a program for each row, which reads the row several times.

Nothing is sorted, and no filtered logits are written. Bisection (`search`) finds which tokens a filter keeps: a row
without filters is read twice, and a greedy row once. Knows nothing of requests. Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from tessera_kernels import tuning
from tessera_kernels.chips import Chip, chip_of
from tessera_kernels.sampling import search
from tessera_kernels.sampling.reference import GREEDY_BELOW, STRIP

BLOCK = 4096
"""Logits that a program reads at once: four strips of `STRIP`."""


@triton.jit
def _noise(bits):
    """Standard Gumbel noise from 32 random bits."""
    share = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    # Shares near zero win most draws; log(1 - share) would lose all of their digits.
    near = share + share * share * (0.5 + share * 0.3333333333333333)
    far = -tl.log(tl.maximum(1.0 - share, 1.4901161193847656e-08))
    return -tl.log(tl.where(share < 0.0009765625, near, far))


@triton.jit
def _better(b_x, o_v, b_best, b_at):
    """The larger of two values with its token; of equal values, the one that came first."""
    better = b_x > b_best
    return tl.where(better, b_x, b_best), tl.where(better, o_v, b_at)


@triton.jit
def _first_of(b_best, b_at):
    """The first token that has the largest value."""
    return tl.min(tl.where(b_best == tl.max(b_best, axis=0), b_at, 2147483647), axis=0)


@triton.jit
def _drawn(
    p_row,
    p_counts_row,
    vocabulary,
    inverse,
    repetition,
    presence,
    frequency,
    least,
    seed,
    position,
    STRIP: tl.constexpr,
):
    """The token with the largest sum of logit and noise, among tokens with a logit of at least `least`."""
    b_best = tl.full([STRIP], -float("inf"), tl.float32)
    b_at = tl.zeros([STRIP], tl.int32)
    for start in range(0, vocabulary, 4 * STRIP):
        o0 = start + tl.arange(0, STRIP)
        o1, o2, o3 = o0 + STRIP, o0 + 2 * STRIP, o0 + 3 * STRIP
        b_x0 = search.adjusted(p_row, p_counts_row, o0, vocabulary, inverse, repetition, presence, frequency)
        b_x1 = search.adjusted(p_row, p_counts_row, o1, vocabulary, inverse, repetition, presence, frequency)
        b_x2 = search.adjusted(p_row, p_counts_row, o2, vocabulary, inverse, repetition, presence, frequency)
        b_x3 = search.adjusted(p_row, p_counts_row, o3, vocabulary, inverse, repetition, presence, frequency)
        b_most = tl.maximum(tl.maximum(b_x0, b_x1), tl.maximum(b_x2, b_x3))
        # The ten rounds of Philox are skipped if no token of the block is kept.
        if tl.max(b_most, axis=0) >= least:
            counter = (start // 4 + tl.arange(0, STRIP)).to(tl.uint32)
            nothing = tl.zeros([STRIP], tl.uint32)
            low = nothing + (position & 0xFFFFFFFF).to(tl.uint32)
            high = nothing + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
            r0, r1, r2, r3 = tl.philox(seed, counter, low, high, nothing)
            b_best, b_at = _better(tl.where(b_x0 >= least, b_x0 + _noise(r0), -float("inf")), o0, b_best, b_at)
            b_best, b_at = _better(tl.where(b_x1 >= least, b_x1 + _noise(r1), -float("inf")), o1, b_best, b_at)
            b_best, b_at = _better(tl.where(b_x2 >= least, b_x2 + _noise(r2), -float("inf")), o2, b_best, b_at)
            b_best, b_at = _better(tl.where(b_x3 >= least, b_x3 + _noise(r3), -float("inf")), o3, b_best, b_at)
    return _first_of(b_best, b_at)


@triton.jit
def sample_kernel(
    p_logits,
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_seed,
    p_position,
    p_counts,
    p_repetition,
    p_presence,
    p_frequency,
    p_out,
    vocabulary,
    logits_stride,
    counts_stride,
    GREEDY: tl.constexpr,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw the token of one row."""
    row = tl.program_id(0).to(tl.int64)
    p_row = p_logits + row * logits_stride
    p_counts_row = None
    repetition, presence, frequency = 1.0, 0.0, 0.0
    if p_counts is not None:
        p_counts_row = p_counts + row * counts_stride
        repetition = tl.load(p_repetition + row)
        presence = tl.load(p_presence + row)
        frequency = tl.load(p_frequency + row)
    temperature = tl.load(p_temperature + row)
    greedy = temperature < GREEDY
    inverse = 1.0 / tl.where(greedy, 1.0, temperature)

    b_best = tl.full([BLOCK], -float("inf"), tl.float32)
    b_at = tl.zeros([BLOCK], tl.int32)
    b_invalid = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        b_x = search.adjusted(p_row, p_counts_row, o_v, vocabulary, inverse, repetition, presence, frequency)
        b_invalid |= (b_x != b_x).to(tl.int32) | (b_x == float("inf")).to(tl.int32)  # noqa: PLR0124 - NaN
        b_best, b_at = _better(b_x, o_v, b_best, b_at)
    largest = tl.max(b_best, axis=0)
    invalid = (tl.max(b_invalid, axis=0) > 0) | (largest == -float("inf"))
    token = _first_of(b_best, b_at)

    if (invalid | greedy) == 0:
        least = search.LOWEST
        top_k = tl.load(p_top_k + row)
        if (top_k > 0) & (top_k < vocabulary):
            least = search.least_kept(
                p_row,
                p_counts_row,
                vocabulary,
                inverse,
                repetition,
                presence,
                frequency,
                largest,
                top_k.to(tl.float32),
                False,
                BLOCK,
            )
        top_p = tl.load(p_top_p + row)
        if top_p < 1.0:
            mass = search.mass_from(
                p_row, p_counts_row, vocabulary, inverse, repetition, presence, frequency, largest, least, BLOCK
            )
            by_mass = search.least_kept(
                p_row,
                p_counts_row,
                vocabulary,
                inverse,
                repetition,
                presence,
                frequency,
                largest,
                top_p * mass,
                True,
                BLOCK,
            )
            least = tl.maximum(least, by_mass)
        min_p = tl.load(p_min_p + row)
        if min_p > 0.0:
            least = tl.maximum(least, tl.minimum(largest + tl.log(min_p), largest))
        token = _drawn(
            p_row,
            p_counts_row,
            vocabulary,
            inverse,
            repetition,
            presence,
            frequency,
            least,
            tl.load(p_seed + row),
            tl.load(p_position + row),
            STRIP,
        )
    tl.store(p_out + row, tl.where(invalid, -1, token).to(tl.int64))


def bucket(vocabulary: int) -> str:
    """Name of the bucket of shapes, as it appears in tuned files."""
    return f"V{triton.next_power_of_2(vocabulary)}"


def config(vocabulary: int, dtype: torch.dtype, chip: Chip) -> Mapping[str, int]:
    """The launch configuration: `num_warps`, as many as a program may have, because rows are few."""
    name = str(dtype).removeprefix("torch.")
    tuned = tuning.lookup("sampling", tuning.device_here(), name, bucket(vocabulary))
    return tuned or {"num_warps": 1024 // chip.warp}


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
    *,
    out_B: torch.Tensor | None = None,
    configuration: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Launch `tessera_kernels.sampling.sample`; tensors [B] are contiguous, and `out` is int64 [B] if given."""
    rows, vocabulary = logits_BV.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits_BV.device) if out_B is None else out_B
    if rows:
        sample_kernel[(rows,)](
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
            out,
            vocabulary,
            logits_BV.stride(0),
            0 if counts_BV is None else counts_BV.stride(0),
            GREEDY=GREEDY_BELOW,
            STRIP=STRIP,
            BLOCK=BLOCK,
            **(configuration or config(vocabulary, logits_BV.dtype, chip_of(logits_BV.device))),
        )
    return out
