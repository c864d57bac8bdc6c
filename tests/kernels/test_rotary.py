"""Rotary embedding equals rotating complex numbers in float64, in every implementation and convention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.support import BOUNDS, relative_rms

from tessera_kernels.rotary import axes_of, registered, rotary, rotary_by_table, tables

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def turned(heads_THD: torch.Tensor, angle_TF: torch.Tensor, *, interleaved: bool, scaling: float = 1.0):
    """Each pair is a complex number, multiplied by e^(i angle)."""
    pairs = angle_TF.shape[-1]
    exact = heads_THD.double().clone()
    if interleaved:
        first, second = exact[..., 0 : 2 * pairs : 2], exact[..., 1 : 2 * pairs : 2]
    else:
        first, second = exact[..., :pairs], exact[..., pairs : 2 * pairs]
    turn = torch.polar(torch.full_like(angle_TF.double(), scaling), angle_TF.double())[:, None]
    result = torch.complex(first, second) * turn
    first.copy_(result.real)
    second.copy_(result.imag)
    return exact


def packed(tokens: int, heads: int, key_heads: int, dim: int, dtype: torch.dtype):
    """Queries and keys as slices of one tensor, with values behind them."""
    whole = torch.randn(tokens, heads + 2 * key_heads, dim).to(dtype)
    return whole[:, :heads], whole[:, heads : heads + key_heads], whole[:, heads + key_heads :]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    implementation=st.sampled_from(["reference", "triton"]),
    tokens=st.sampled_from([0, 1, 3, 130]),
    heads=st.tuples(st.integers(1, 5), st.integers(0, 3)),
    sections=st.sampled_from([(1,), (4,), (7,), (3, 2), (2, 1, 2)]),
    rest=st.sampled_from([0, 3]),
    interleaved=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from([torch.int32, torch.int64, torch.float32]),
    scaling=st.sampled_from([1.0, 1.2]),
)
def test_positions_in_one_to_three_dimensions(
    implementation, tokens, heads, sections, rest, interleaved, dtype, kind, scaling
):
    torch.manual_seed(tokens)
    pairs = sum(sections)
    query, key, value = packed(tokens, *heads, 2 * pairs + rest, dtype)
    positions = torch.randint(0, 1000, (tokens, len(sections))).to(kind)
    inverse, axis = 100.0 ** -torch.rand(pairs), axes_of(sections) if len(sections) > 1 else None
    angle = positions.double()[:, axes_of(sections).long()] * inverse.double()
    exact = [turned(part, angle, interleaved=interleaved, scaling=scaling) for part in (query, key)]
    kept, untouched = value.clone(), (query[..., 2 * pairs :].clone(), key[..., 2 * pairs :].clone())
    if implementation == "triton":
        from tessera_kernels.rotary import triton

        triton.rotary(query, key, positions, inverse, axis, interleaved=interleaved, scaling=scaling)
    else:
        rotary(query, key, positions, inverse, axis, interleaved=interleaved, scaling=scaling)
    # A float32 angle of hundreds of radians is known to some 1e-5.
    bound = max(BOUNDS[dtype], 5e-5)
    assert relative_rms(query, exact[0]) <= bound
    assert relative_rms(key, exact[1]) <= bound
    assert torch.equal(value, kept)
    assert torch.equal(query[..., 2 * pairs :], untouched[0])
    assert torch.equal(key[..., 2 * pairs :], untouched[1])


@settings(max_examples=20, deadline=None)
@given(
    implementation=st.sampled_from(["reference", "triton"]),
    rows=st.integers(1, 4),
    samples=st.integers(1, 3),
    given_positions=st.booleans(),
    interleaved=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_tables(implementation, rows, samples, given_positions, interleaved, dtype):
    torch.manual_seed(rows)
    tokens, pairs = rows * samples, 5
    query, key, _ = packed(tokens, 3, 2, 12, dtype)
    angle = torch.rand(rows, pairs) * 6.3
    # Diffusers' tables have each angle twice, side by side or one half after the other.
    double = angle.repeat_interleave(2, -1) if interleaved else angle.repeat(1, 2)
    columns = slice(None, None, 2) if interleaved else slice(None, pairs)
    cos, sin = double.cos()[:, columns], double.sin()[:, columns]
    positions = torch.randint(0, rows, (tokens,)) if given_positions else None
    row = torch.arange(tokens) % rows if positions is None else positions
    exact = [turned(part, angle[row], interleaved=interleaved) for part in (query, key)]
    if implementation == "triton":
        from tessera_kernels.rotary import triton

        triton.rotary(query, key, positions, cos_PF=cos.contiguous(), sin_PF=sin.contiguous(), interleaved=interleaved)
    else:
        rotary_by_table(query, key, cos, sin, positions, interleaved=interleaved)
    assert relative_rms(query, exact[0]) <= BOUNDS[dtype]
    assert relative_rms(key, exact[1]) <= BOUNDS[dtype]


def test_tables_computed_once_rotate_as_positions_do():
    query, key, _ = packed(4, 3, 2, 16, torch.float32)
    again = query.clone(), key.clone()
    positions, inverse, axis = torch.randint(0, 50, (4, 3)), torch.rand(8), axes_of((4, 2, 2))
    rotary(query, key, positions, inverse, axis)
    rotary_by_table(*again, *tables(positions, inverse, axis))
    torch.testing.assert_close((query, key), again)


def test_tokens_beyond_two_to_the_31_elements_are_found():
    from tessera_kernels.rotary import triton

    far = 2**31 + 64  # only the pages that are touched take memory
    query = torch.empty(far + 16, dtype=torch.bfloat16).as_strided((2, 2, 8), (far, 8, 1))
    query.copy_(torch.randn(2, 2, 8))
    exact = turned(query, torch.tensor([[0.0] * 4, [1.0] * 4]), interleaved=False)
    triton.rotary(query, None, torch.tensor([0, 1]), torch.ones(4), interleaved=False)
    assert relative_rms(query, exact) <= BOUNDS[torch.bfloat16]


def test_an_overflow_stays_in_its_pair():
    from tessera_kernels.rotary import triton

    for interleaved in (False, True):
        query = torch.randn(2, 2, 8)
        query[1, 0, 2] = float("nan")
        triton.rotary(query, None, torch.tensor([3, 5]), torch.ones(4), interleaved=interleaved)
        lost = (~query.isfinite()).nonzero().tolist()
        assert lost == [[1, 0, 2], [1, 0, 3 if interleaved else 6]]


def test_the_registered_ops_pass_opcheck():
    query, key = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    positions, inverse, axis = torch.randint(0, 9, (3, 2)), torch.rand(4), axes_of((2, 2))
    torch.library.opcheck(registered.rotary, (query, key, positions, inverse, axis, False, 1.0))
    torch.library.opcheck(registered.rotary, (query, None, positions, inverse, None, True, 1.0))
    torch.library.opcheck(registered.tables, (positions, inverse, axis, 1.0))
    torch.library.opcheck(registered.rotary_by_table, (query, key, torch.rand(3, 4), torch.rand(3, 4), None, True))


def test_torch_compile_sees_one_op():
    def turn(query, key, positions, inverse):
        rotary(query, key, positions, inverse)
        rotary_by_table(query, key, *tables(positions, inverse), interleaved=True)
        return query * 2

    inputs = [torch.randn(3, 2, 8), torch.randn(3, 1, 8), torch.arange(3), torch.rand(4)]
    kept = [tensor.clone() for tensor in inputs]
    whole = torch.compile(turn, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*inputs), turn(*kept))
    torch.testing.assert_close(inputs, kept)


def test_what_does_not_fit_is_refused():
    query, positions, inverse = torch.zeros(3, 2, 8), torch.arange(3), torch.ones(4)
    with pytest.raises(ValueError, match=r"queries must be \[tokens, heads, at least 10\], not \(3, 2, 8\)"):
        rotary(query, None, positions, torch.ones(5))
    with pytest.raises(ValueError, match=r"keys must be as queries, torch.float32 of 3 tokens, not torch.float32 of 2"):
        rotary(query, query[:2], positions, inverse)
    with pytest.raises(ValueError, match="contiguous heads"):
        rotary(torch.zeros(3, 8, 2).transpose(1, 2), None, positions, inverse)
    with pytest.raises(ValueError, match=r"positions must be \[3\]"):
        rotary(query, None, positions[:2], inverse)
    with pytest.raises(ValueError, match="inverse frequencies must be float32"):
        rotary(query, None, positions, inverse.double())
    with pytest.raises(ValueError, match=r"axes must be int32 \(4,\)"):
        rotary(query, None, positions, inverse, torch.zeros(4))
    with pytest.raises(ValueError, match="two alike"):
        rotary_by_table(query, None, torch.ones(3, 4), torch.ones(3, 3))
    with pytest.raises(ValueError, match="rows must divide the tokens: 3 by 2"):
        rotary_by_table(query, None, torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(ValueError, match="positions must be"):
        rotary_by_table(query, None, torch.ones(2, 4), torch.ones(2, 4), torch.zeros(3))
