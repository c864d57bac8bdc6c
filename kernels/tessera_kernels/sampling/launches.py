"""All launches of `sample`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch

from tessera_kernels.chips import CHIPS
from tessera_kernels.gate.launch import Launch
from tessera_kernels.sampling.reference import GREEDY_BELOW, STRIP

PENALTIES = {"p_counts": "*i32", "p_repetition": "*fp32", "p_presence": "*fp32", "p_frequency": "*fp32"}
SETTINGS = {
    **dict.fromkeys(("p_temperature", "p_top_p", "p_min_p"), "*fp32"),
    "p_top_k": "*i32",
    "p_seed": "*i64",
    "p_position": "*i64",
}


def launches() -> Iterator[Launch]:
    """Logits of every dtype, with and without penalties."""
    from tessera_kernels.sampling import triton  # noqa: PLC0415 - Triton is needed for launches alone

    nothing: dict[str, Any] = dict.fromkeys(PENALTIES)
    for kind, penalties, amd in product(("bf16", "fp16", "fp32"), (False, True), (False, True)):
        chips = [chip for chip in CHIPS.values() if (chip.backend == "hip") == amd]
        yield Launch(
            name=f"{kind}{' penalties' if penalties else ''}{' of 64 threads a warp' if amd else ''}",
            kernel=triton.sample_kernel,
            signature={
                "p_logits": f"*{kind}",
                **SETTINGS,
                **(PENALTIES if penalties else {}),
                "p_out": "*i64",
                **dict.fromkeys(("vocabulary", "logits_stride", "counts_stride"), "i32"),
            },
            constants={
                **({} if penalties else nothing),
                "GREEDY": GREEDY_BELOW,
                "STRIP": STRIP,
                "BLOCK": triton.BLOCK,
            },
            num_warps=triton.config(2**17, torch.bfloat16, chips[0])["num_warps"],
            aligned=frozenset({"p_logits", "p_counts", "vocabulary", "logits_stride", "counts_stride"}),
            only=frozenset(chip.name for chip in chips),
        )
