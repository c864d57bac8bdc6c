"""Repacks GPTQ weights (Frantar et al. 2022, as AutoGPTQ and GPTQModel write them).

Words run along the inputs in `qweight` and along the outputs in `qzeros`. The first version of the format stores a zero
point - 1; the second (`checkpoint_format: gptq_v2`) stores the zero point. 2, 3 and 8 bits are not supported.

Shape letters: K inputs, N outputs, G groups.
"""

from __future__ import annotations

import torch

from tessera_kernels.repack.words import check_words, unpack_words
from tessera_kernels.storage.quantized_weight import QuantizedWeight, pack, run_of


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales_GN: torch.Tensor,
    g_idx_K: torch.Tensor | None = None,
    *,
    version: int = 1,
) -> QuantizedWeight:
    """Repack a GPTQ layer of four bits, where an element stands for (element - zero) · scale.

    Args:
        qweight: int32 [K / 8, N].
        qzeros: int32 [G, N / 8].
        scales_GN: float [G, N].
        g_idx_K: the group of each input; None if groups are in order.
        version: version of the checkpoint format, 1 or 2.

    Raises:
        ValueError: shapes do not fit, or the groups are not in order (`desc_act`): inputs would have to be gathered
            before every product, which costs more than the order gains.
    """
    inputs, outputs, groups = qweight.shape[0] * 8, qweight.shape[1], scales_GN.shape[0]
    group = -(-inputs // groups)
    check_words("qweight", qweight, (inputs // 8, outputs))
    check_words("qzeros", qzeros, (groups, outputs // 8))
    if tuple(scales_GN.shape) != (groups, outputs):
        raise ValueError(f"scales must be {(groups, outputs)}, not {tuple(scales_GN.shape)}")
    if version not in {1, 2}:
        raise ValueError(f"there are versions 1 and 2 of GPTQ's format, not {version}")
    if g_idx_K is not None and not torch.equal(g_idx_K.cpu().long(), torch.arange(inputs) // group):
        raise ValueError("the groups of this GPTQ weight are not in order (desc_act): quantize it again without")
    elements_NK = unpack_words(qweight.t().contiguous())
    zero_GN = unpack_words(qzeros) + (1 if version == 1 else 0)
    if groups == 1:
        group = -(-inputs // 64) * 64
    weight = QuantizedWeight(
        "int4", inputs, group, pack(elements_NK, run_of(group)), scales_GN.contiguous(), zero_GN.contiguous()
    )
    weight.check()
    return weight
