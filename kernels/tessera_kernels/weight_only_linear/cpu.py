"""`weight_only_linear` for int4 on a CPU, with torch's own int4 product; weights are packed once.

torch vectorizes its int4 product for bfloat16 and not for float32 (measured: 180 against 1.5 GFLOP/s), so inputs and
scales are rounded to bfloat16; sums are float32. Other formats are expanded by `reference`.

Shape letters: T tokens, K inputs, N outputs, G groups of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.storage.quantized_weight import FLOATS, INT4_ZERO_POINT, QuantizedWeight, unpack

GROUPS = (32, 64, 128, 256)
"""Numbers of inputs that share a scale, of those that torch's product supports."""
OUTPUTS = 16
"""Divisor of the number of outputs that torch's product supports."""


@dataclass(frozen=True)
class PackedInt4:
    """A weight [N, K] in the order of torch's int4 product.

    Attributes:
        elements: uint8 [N, K / 2]; torch chooses the order of elements, which depends on the processor.
        scales_GN2: bfloat16, a scale and an offset: an element q stands for (q - 8) · scale + offset.
        inputs: K.
        group: number of inputs that share a scale.
    """

    elements: torch.Tensor
    scales_GN2: torch.Tensor
    inputs: int
    group: int

    @property
    def outputs(self) -> int:
        """N."""
        return self.scales_GN2.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of elements and scales."""
        return self.elements.nbytes + self.scales_GN2.nbytes


def packs(weight: QuantizedWeight) -> bool:
    """Whether torch's int4 product supports this weight."""
    return (
        weight.format == "int4"
        and weight.elements.device.type == "cpu"
        and not weight.experts
        and weight.group in GROUPS
        and weight.inputs % weight.group == 0
        and weight.outputs % OUTPUTS == 0
    )


def pack(weight: QuantizedWeight) -> PackedInt4:
    """Pack a weight in torch's order; elements are unchanged, scales and offsets are rounded to bfloat16.

    Raises:
        ValueError: torch's product does not support the weight, so `packs` is False.
    """
    if not packs(weight):
        raise ValueError(
            f"torch's product of four bits takes int4 on a CPU, groups of {', '.join(map(str, GROUPS))} inputs and a "
            f"multiple of {OUTPUTS} outputs, not {weight.format} [{weight.outputs}, {weight.inputs}] on "
            f"{weight.elements.device.type} in groups of {weight.group}"
        )
    weight.check()
    assert weight.scale_GN is not None
    scale_GN, zero = weight.scale_GN.float(), weight.zero_GN
    # torch computes (element - 8) · scale + offset.
    if zero is None:
        offset_GN = torch.zeros_like(scale_GN)
    elif zero.dtype.is_floating_point:
        offset_GN = zero.float() + INT4_ZERO_POINT * scale_GN
    else:
        offset_GN = (INT4_ZERO_POINT - zero.float()) * scale_GN
    elements = unpack(weight.elements, weight.inputs).to(torch.int32).contiguous()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(elements, 1)
    scales_GN2 = torch.stack([scale_GN, offset_GN], -1).to(torch.bfloat16).contiguous()
    return PackedInt4(packed, scales_GN2, weight.inputs, weight.group)


def packed_int4_linear(x_TK: torch.Tensor, weight: PackedInt4, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """x · weightᵀ + bias, with inputs rounded to bfloat16.

    Args:
        x_TK: [tokens, inputs], float16, bfloat16 or float32.
        weight: the packed weight, from `pack`.
        bias_N: any float dtype, [outputs].

    Returns:
        [tokens, outputs], in the dtype of `x`. A row has the same bits in any batch.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    if x_TK.dtype not in FLOATS or x_TK.ndim != 2 or x_TK.shape[1] != weight.inputs:
        raise ValueError(f"inputs must be float [tokens, {weight.inputs}], not {x_TK.dtype} {tuple(x_TK.shape)}")
    if bias_N is not None and (tuple(bias_N.shape) != (weight.outputs,) or bias_N.dtype not in FLOATS):
        raise ValueError(f"the bias must be float [{weight.outputs}], not {bias_N.dtype} {tuple(bias_N.shape)}")
    found = torch.ops.aten._weight_int4pack_mm_for_cpu(
        x_TK.to(torch.bfloat16).contiguous(), weight.elements, weight.group, weight.scales_GN2
    ).float()
    if bias_N is not None:
        found += bias_N
    return found.to(x_TK.dtype)  # type: ignore[no-any-return]
