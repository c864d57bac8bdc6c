"""Every way in which `moe` itself launches: adding up, by how many experts a token has."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.gate.launch import Launch
from tessera_kernels.moe.triton import PIECE, combine_kernel


def launches() -> Iterator[Launch]:
    """Mixtral's two, gpt-oss' four, DeepSeek-V2's six, Qwen3's and DeepSeek-V3's eight."""
    for chosen in (2, 4, 6, 8):
        for dtype in ("bf16", "fp16"):
            pointers = {"p_outer": f"*{dtype}", "p_experts": "*i32", "p_weights": "*fp32", "p_out": f"*{dtype}"}
            yield Launch(
                name=f"combine {chosen} {dtype}",
                kernel=combine_kernel,
                signature={**pointers, "experts": "i32", "features": "i32"},
                constants={"CHOSEN": chosen, "B_D": PIECE},
                aligned=frozenset(pointers) | {"features"},
            )
