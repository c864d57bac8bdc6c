"""Repacks GGUF blocks of 32 inputs: Q4_0, Q4_1 and Q8_0 (ggml-common.h, `block_q4_0`, `block_q4_1`, `block_q8_0`).

A block begins with its float16 scale; in Q4_1 the float16 minimum follows. Then come sixteen bytes, where the lower
bits of byte i are input i and the upper bits are input i + 16, or in Q8_0 32 signed bytes. K-quants are not supported.
"""

from __future__ import annotations

import torch

from tessera_kernels.storage.quantized_weight import QuantizedWeight, pack, run_of

BLOCK = 32
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
"""Bytes of a block by GGUF type."""


def from_gguf(data: torch.Tensor, kind: str) -> QuantizedWeight:
    """Repack a weight of a GGUF file.

    Args:
        data: uint8 [outputs, bytes of a row], as `gguf.GGUFReader` gives it.
        kind: Q4_0, Q4_1 or Q8_0.

    Raises:
        ValueError: another kind, or rows that are not whole blocks.
    """
    if kind not in BYTES:
        raise ValueError(f"GGUF types {', '.join(BYTES)} can be repacked, not {kind}")
    if data.dtype != torch.uint8 or data.ndim != 2 or not data.shape[1] or data.shape[1] % BYTES[kind]:
        raise ValueError(
            f"{kind} must be uint8 [outputs, a multiple of {BYTES[kind]} bytes], not {data.dtype} {tuple(data.shape)}"
        )
    blocks = data.reshape(data.shape[0], -1, BYTES[kind])
    inputs = blocks.shape[1] * BLOCK
    scale_GN = _float16(blocks[..., :2])
    if kind == "Q8_0":
        return QuantizedWeight("int8", inputs, BLOCK, blocks[..., 2:].reshape(-1, inputs).view(torch.int8), scale_GN)
    minimum_GN, first = (_float16(blocks[..., 2:4]), 4) if kind == "Q4_1" else (None, 2)
    halves = blocks[..., first:]
    elements_NK = torch.cat([halves & 15, halves >> 4], dim=-1).reshape(-1, inputs)
    return QuantizedWeight("int4", inputs, BLOCK, pack(elements_NK, run_of(BLOCK)), scale_GN, minimum_GN)


def _float16(two_bytes: torch.Tensor) -> torch.Tensor:
    return two_bytes.contiguous().view(torch.float16).squeeze(-1).t().contiguous()
