"""Weights that other tools quantized dequantize to the same values after they were repacked, bit for bit."""

from __future__ import annotations

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera_kernels.repack import from_awq, from_gguf, from_gptq
from tessera_kernels.storage.quantized_weight import dequantize, pack, unpack

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(elements, dim, order=range(8)):
    """Eight elements along `dim` in each 32-bit word, by the definition: a sum of shifted elements."""
    elements = elements.long().movedim(dim, -1).unflatten(-1, (-1, 8))
    word = sum(elements[..., place] << (4 * position) for position, place in enumerate(order))
    return torch.where(word >= 2**31, word - 2**32, word).to(torch.int32).movedim(-1, dim).contiguous()


@settings(max_examples=25, deadline=None)
@given(
    eights=st.integers(1, 3),
    group=st.sampled_from([32, 64, 128]),
    groups=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_gptq_and_awq_dequantize_to_the_same_values(eights, group, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = groups * group, 8 * eights
    elements_KN = torch.randint(0, 16, (inputs, outputs), generator=generator)
    zero_GN = torch.randint(0, 16, (groups, outputs), generator=generator)
    scale_GN = torch.rand(groups, outputs, generator=generator).half()
    spread = [one.repeat_interleave(group, 0) for one in (zero_GN, scale_GN.float())]
    stored = words(elements_KN, 0), words(zero_GN, 1), scale_GN
    in_order = torch.arange(inputs, dtype=torch.int32) // group
    for version in (1, 2):
        exact = (elements_KN - spread[0] - int(version == 1)).float() * spread[1]
        assert torch.equal(dequantize(from_gptq(*stored, in_order, version=version)), exact.t())
    awq = words(elements_KN, 1, AWQ_ORDER), words(zero_GN, 1, AWQ_ORDER), scale_GN
    assert torch.equal(dequantize(from_awq(*awq)), ((elements_KN - spread[0]).float() * spread[1]).t())


@settings(max_examples=25, deadline=None)
@given(
    outputs=st.integers(1, 9),
    blocks=st.integers(1, 5),
    kind=st.sampled_from(["Q4_0", "Q4_1", "Q8_0"]),
    seed=st.integers(0, 99),
)
def test_gguf_dequantizes_to_the_same_values(outputs, blocks, kind, seed):
    weight = torch.randn(outputs, 32 * blocks, generator=torch.Generator().manual_seed(seed)) * 3
    stored = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])
    exact = torch.from_numpy(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]))
    assert torch.equal(dequantize(from_gguf(torch.from_numpy(stored), kind)), exact)


@settings(max_examples=25, deadline=None)
@given(outputs=st.integers(0, 9), inputs=st.integers(1, 200), run=st.sampled_from([16, 32, 64]))
def test_unpacking_returns_what_was_packed(outputs, inputs, run):
    elements = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    packed = pack(elements, run)
    assert packed.is_contiguous()
    assert torch.equal(unpack(packed, inputs), elements)
    if outputs:
        assert packed[0, 0, 0] == elements[0, 0] + 16 * (elements[0, run] if inputs > run else 0)


def test_what_cannot_be_repacked_is_refused():
    qweight, qzeros, scales = (
        torch.zeros(16, 8, dtype=torch.int32),
        torch.zeros(4, 1, dtype=torch.int32),
        torch.ones(4, 8),
    )
    with pytest.raises(ValueError, match="not in order"):
        from_gptq(qweight, qzeros, scales, torch.randperm(128) // 32)
    with pytest.raises(ValueError, match="qzeros must be int32"):
        from_gptq(qweight, qzeros[:3], scales)
    with pytest.raises(ValueError, match="versions 1 and 2"):
        from_gptq(qweight, qzeros, scales, version=3)
    with pytest.raises(ValueError, match=r"qweight must be int32 \(128, 2\)"):
        from_awq(torch.zeros(128, 1, dtype=torch.int32), qzeros, torch.ones(4, 16))
    with pytest.raises(ValueError, match="not Q6_K"):
        from_gguf(torch.zeros(1, 18, dtype=torch.uint8), "Q6_K")
    with pytest.raises(ValueError, match="multiple of 18"):
        from_gguf(torch.zeros(1, 20, dtype=torch.uint8), "Q4_0")
