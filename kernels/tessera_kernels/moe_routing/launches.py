"""All launches of `moe_routing`, for the routers of common models."""

from __future__ import annotations

from collections.abc import Iterator

from tessera_kernels.gate.launch import Launch
from tessera_kernels.moe_routing.triton import ASSIGNMENTS_PER_STEP, count_kernel, place_kernel, route_kernel

ROUTERS = {
    "Mixtral": (8, 2, 1, 1, False, False),
    "Qwen3-30B-A3B": (128, 8, 1, 1, False, False),
    "gpt-oss": (32, 4, 1, 1, False, False),
    "DeepSeek-V2": (256, 6, 8, 3, False, False),
    "DeepSeek-V3": (256, 8, 8, 4, True, True),
}
"""Routers by model: experts, chosen experts, groups, chosen groups, sigmoid scores, bias."""


def launches() -> Iterator[Launch]:
    """Routing by model, sorting by number of experts and size of a tile."""
    for name, (experts, chosen, groups, chosen_groups, sigmoid, bias) in ROUTERS.items():
        for dtype in ("bf16", "fp32"):
            yield Launch(
                name=f"route {name} {dtype}",
                kernel=route_kernel,
                signature={
                    "p_logits": f"*{dtype}",
                    "p_bias": "*fp32" if bias else f"*{dtype}",
                    "p_weights": "*fp32",
                    "p_experts": "*i32",
                    "experts": "i32",
                    "factor": "fp32",
                },
                constants={
                    "SIGMOID": sigmoid,
                    "BIAS": bias,
                    "GROUPS": groups,
                    "CHOSEN_GROUPS": chosen_groups,
                    "CHOSEN": chosen,
                    "RENORMALIZE": True,
                    "B_E": experts,
                    "B_G": groups,
                    "B_C": 1 << (chosen - 1).bit_length(),
                },
                num_warps=1 if experts <= 256 and groups == 1 else 4,
                aligned=frozenset({"p_logits", "p_bias", "p_weights", "p_experts"}),
            )
    yield Launch(
        name="count",
        kernel=count_kernel,
        signature={"p_experts": "*i32", "p_counts": "*i32", "assignments": "i32"},
        constants={"B_A": ASSIGNMENTS_PER_STEP},
        aligned=frozenset({"p_experts", "p_counts"}),
    )
    for experts, tile in ((8, 16), (128, 16), (128, 128), (256, 64)):
        yield Launch(
            name=f"place E{experts} tiles of {tile}",
            kernel=place_kernel,
            signature=dict.fromkeys(("p_experts", "p_counts", "p_rows", "p_owners"), "*i32")
            | dict.fromkeys(("assignments", "experts", "tiles"), "i32"),
            constants={"TILE": tile, "B_E": experts, "B_A": ASSIGNMENTS_PER_STEP},
            aligned=frozenset({"p_experts", "p_counts", "p_rows", "p_owners"}),
        )
