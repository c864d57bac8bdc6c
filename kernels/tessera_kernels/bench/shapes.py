"""Sizes of models whose shapes the benchmarks use. Holds sizes only, no configurations or weights of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a transformer.

    Attributes:
        name: name of the model, as it appears in names of cases.
        hidden: features of the residual stream.
        inner: inner features of the feed-forward layer, or of one expert.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: features of a head.
        vocabulary: tokens of the vocabulary; 0 if the model has none.
        experts: experts of a layer; 0 for a dense model.
        chosen: experts of each token; 0 for a dense model.
        tokens: tokens of a usual forward pass.
    """

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int = 0
    experts: int = 0
    chosen: int = 0
    tokens: int = 8192


LLAMA_3_8B = ModelShape("Llama-3-8B", 4096, 14336, 32, 8, 128, vocabulary=128256)
QWEN3_30B_A3B = ModelShape("Qwen3-30B-A3B", 2048, 768, 32, 4, 128, vocabulary=151936, experts=128, chosen=8)
WAN_14B = ModelShape("Wan-14B", 5120, 13824, 40, 40, 128, tokens=32760)
"""The tokens are those of 81 frames of 832 x 480 pixels: 21 x 30 x 52."""
WHISPER_LARGE = ModelShape("Whisper-large", 1280, 5120, 20, 20, 64, vocabulary=51866, tokens=1500)
