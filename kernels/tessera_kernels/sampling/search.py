# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Passes over a row of logits for `sample`: they read it, and find the smallest value that a filter keeps.

A filter is an upper limit on the mass, or the number of tokens, above a value; which filter it is, is not known here.
Shape letter: V vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-3.4028234e38)
"""Smallest finite float32: every logit that a filter may keep lies above it."""
SEEN = tl.constexpr(1 << 24)
"""Equal to `reference.SEEN`: bit of a token's count that marks tokens of the prompt."""


@triton.jit
def adjusted(p_row, p_counts_row, o_v, vocabulary, inverse, repetition, presence, frequency):
    """Logits after penalties and temperature; -inf behind the end of the vocabulary."""
    here = o_v < vocabulary
    b_x = tl.load(p_row + o_v, mask=here, other=-float("inf")).to(tl.float32)
    if p_counts_row is not None:
        b_count = tl.load(p_counts_row + o_v, mask=here, other=0)
        b_repeated = tl.where(b_x > 0, b_x / repetition, b_x * repetition)
        b_drawn = (b_count & (SEEN - 1)).to(tl.float32)
        b_taken = tl.where(b_drawn > 0, presence + frequency * b_drawn, 0.0)
        b_x = tl.where(b_count != 0, b_repeated, b_x) - b_taken
    return b_x * inverse


@triton.jit
def mass_from(
    p_row, p_counts_row, vocabulary, inverse, repetition, presence, frequency, largest, least, BLOCK: tl.constexpr
):
    """The sum of exp(x - largest) over all x >= least."""
    b_mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        b_x = adjusted(p_row, p_counts_row, o_v, vocabulary, inverse, repetition, presence, frequency)
        b_mass += tl.where(b_x >= least, tl.exp(b_x - largest), 0.0)
    return tl.sum(b_mass, axis=0)


@triton.jit
def least_kept(
    p_row,
    p_counts_row,
    vocabulary,
    inverse,
    repetition,
    presence,
    frequency,
    largest,
    limit,
    MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The smallest value of the row above which lies less than `limit`.

    With MASS, `limit` bounds the sum of exp(x - largest), else the number of tokens. The search is a bisection by
    value: `high` is always a value of the row that is kept, and all values up to `low` are dropped. Each pass counts
    what lies above a pivot and moves to values of the row, so few values are left after few passes.
    """
    low, high = LOWEST, largest
    searching = True
    while searching:
        middle = low * 0.5 + high * 0.5
        # Logits masked by a large negative value would take many halvings, so a step is at most 32.
        pivot = tl.maximum(middle, high - 32.0)
        pivot = tl.where(pivot >= high, middle, pivot)
        pivot = tl.where(pivot >= high, low, pivot)
        b_above = tl.zeros([BLOCK], tl.float32)
        b_next_up = tl.full([BLOCK], float("inf"), tl.float32)
        b_next_down = tl.full([BLOCK], -float("inf"), tl.float32)
        for start in range(0, vocabulary, BLOCK):
            o_v = start + tl.arange(0, BLOCK)
            b_x = adjusted(p_row, p_counts_row, o_v, vocabulary, inverse, repetition, presence, frequency)
            above = b_x > pivot
            if MASS:
                b_above += tl.where(above, tl.exp(b_x - largest), 0.0)
            else:
                b_above += above.to(tl.float32)
            b_next_up = tl.where(above, tl.minimum(b_next_up, b_x), b_next_up)
            b_next_down = tl.where(above, b_next_down, tl.maximum(b_next_down, b_x))
        up, down = tl.min(b_next_up, axis=0), tl.max(b_next_down, axis=0)
        if tl.sum(b_above, axis=0) < limit:
            # All values above the pivot are kept, and so is the next value below it.
            searching = down > low
            high = tl.where(searching, down, up)
        else:
            low = pivot
            searching = up < high
    return tl.minimum(high, largest)
