"""A linear layer's weight in eight bits whose inputs are rounded to eight bits too: int8 or float8 (e4m3).

Does not know who multiplies.

Shape letters: N outputs, K inputs, I and J blocks of 128 outputs and of 128 inputs. Weights of experts have one more
dimension in front of every tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.storage.paged_kv import LARGEST

BLOCK = 128
"""Inputs, and outputs, of a block (DeepSeek-V3, section 3.3.2)."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight [N, K]; every tensor is contiguous.

    Attributes:
        elements_NK: int8 or float8_e4m3fn.
        scale: float32. [N]: one for each output (all the same where there is one for the tensor), and inputs are
            rounded with a scale for each token. [I, J]: one for each block, and inputs with one for 128 of a token.
        input_scale: float32 [1], what inputs are divided by before they are rounded, where it was measured offline;
            None: found for each token. Not with blocks.
    """

    elements_NK: torch.Tensor
    scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    @property
    def blocked(self) -> bool:
        """Whether scales are for blocks."""
        return self.scale.ndim == self.elements_NK.ndim

    @property
    def experts(self) -> tuple[int, ...]:
        """[E], or nothing where there is one weight alone."""
        return tuple(self.elements_NK.shape[:-2])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [one for one in (self.elements_NK, self.scale, self.input_scale) if one is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def check(self) -> None:
        """Raise ValueError where the parts do not fit together, with what was expected."""
        numbers, scale = self.elements_NK, self.scale
        if numbers.dtype not in LARGEST or numbers.ndim < 2:
            raise ValueError(
                f"elements must be {' or '.join(map(str, LARGEST))} [..., outputs, inputs], not {numbers.dtype} "
                f"{tuple(numbers.shape)}"
            )
        outputs, inputs = numbers.shape[-2:]
        each, blocks = (*self.experts, outputs), (*self.experts, -(-outputs // BLOCK), -(-inputs // BLOCK))
        if scale.dtype != torch.float32 or tuple(scale.shape) not in {each, blocks}:
            raise ValueError(f"scales must be float32 {each} or {blocks}, not {scale.dtype} {tuple(scale.shape)}")
        given = self.input_scale
        if given is not None and (self.blocked or given.dtype != torch.float32 or given.numel() != 1):
            raise ValueError("an inputs' scale is one float32 number, and not for weights with scales by block")
        if not all(tensor.is_contiguous() for tensor in self.tensors):
            raise ValueError("a scaled weight must be contiguous")


def dequantize(weight: ScaledWeight) -> torch.Tensor:
    """What a weight stands for: float32 [..., N, K]."""
    numbers, scale = weight.elements_NK.float(), weight.scale
    if not weight.blocked:
        return numbers * scale[..., None]
    outputs, inputs = numbers.shape[-2:]
    spread = scale.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return numbers * spread[..., :outputs, :inputs]
