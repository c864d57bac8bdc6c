"""Repacks AWQ weights (Lin et al. 2023, GEMM version of AutoAWQ): words run along the outputs, interleaved.

Shape letters: K inputs, N outputs, G groups.
"""

from __future__ import annotations

import torch

from tessera_kernels.repack.words import check_words, unpack_words
from tessera_kernels.storage.quantized_weight import QuantizedWeight, pack, run_of

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output, of eight, that the i-th four bits of a word belong to: even outputs are in the lower half."""


def from_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales_GN: torch.Tensor) -> QuantizedWeight:
    """Repack an AWQ layer of four bits, where an element stands for (element - zero) · scale.

    Args:
        qweight: int32 [K, N / 8].
        qzeros: int32 [G, N / 8].
        scales_GN: float [G, N].

    Raises:
        ValueError: shapes do not fit.
    """
    (inputs, words), groups = qweight.shape, scales_GN.shape[0]
    check_words("qweight", qweight, (inputs, scales_GN.shape[1] // 8))
    check_words("qzeros", qzeros, (groups, words))
    group = -(-inputs // groups) if groups > 1 else -(-inputs // 64) * 64
    elements_NK = unpack_words(qweight, ORDER).t()
    weight = QuantizedWeight(
        "int4", inputs, group, pack(elements_NK, run_of(group)), scales_GN.contiguous(), unpack_words(qzeros, ORDER)
    )
    weight.check()
    return weight
