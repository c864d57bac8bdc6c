"""GPTQ's layout (Frantar et al. 2022, as AutoGPTQ and GPTQModel write it).

Words run along the inputs in `qweight` and along the outputs in `qzeros`. The first version of the format stores a zero
point less one; the second (`checkpoint_format: gptq_v2`) stores it as it is. Does not know 2, 3 or 8 bits.

Shape letters: K inputs, N outputs, G groups.
"""

from __future__ import annotations

import torch

from tessera_kernels.repack.words import check_words, numbers_of
from tessera_kernels.storage.quantized_weight import QuantizedWeight, pack, run_of


def from_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales_GN: torch.Tensor,
    g_idx_K: torch.Tensor | None = None,
    *,
    version: int = 1,
) -> QuantizedWeight:
    """A GPTQ layer of four bits: (number - zero) · scale.

    Args:
        qweight: int32 [K / 8, N].
        qzeros: int32 [G, N / 8].
        scales_GN: float [G, N].
        g_idx_K: the group of each input; None where they are in order.
        version: of the checkpoint format.

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
    elements_NK = numbers_of(qweight.t().contiguous())
    zero_GN = numbers_of(qzeros) + (1 if version == 1 else 0)
    if groups == 1:
        group = -(-inputs // 64) * 64
    weight = QuantizedWeight(
        "int4", inputs, group, pack(elements_NK, run_of(group)), scales_GN.contiguous(), zero_GN.contiguous()
    )
    weight.check()
    return weight
