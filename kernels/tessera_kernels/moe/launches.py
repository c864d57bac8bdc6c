"""All launches of `combine`, by the number of experts of a token."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.gate.launch import Launch
from tessera_kernels.moe.triton import FEATURES_PER_PROGRAM, combine_kernel


def launches() -> Iterator[Launch]:
    """Two experts of a token (Mixtral), four (gpt-oss), six (DeepSeek-V2) and eight (Qwen3, DeepSeek-V3)."""
    for chosen in (2, 4, 6, 8):
        for dtype in ("bf16", "fp16"):
            pointers = {"p_outer": f"*{dtype}", "p_experts": "*i32", "p_weights": "*fp32", "p_out": f"*{dtype}"}
            yield Launch(
                name=f"combine {chosen} {dtype}",
                kernel=combine_kernel,
                signature={**pointers, "experts": "i32", "features": "i32"},
                constants={"CHOSEN": chosen, "B_D": FEATURES_PER_PROGRAM},
                aligned=frozenset(pointers) | {"features"},
            )
