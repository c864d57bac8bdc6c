"""A linear layer's weight in eight bits whose inputs are quantized to eight bits too: int8 or float8 (e4m3).

Knows no kernels.

Shape letters: N outputs, K inputs, I and J blocks of 128 outputs and of 128 inputs. Weights of experts have one more
dimension in front of every tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.storage.paged_kv import LARGEST

BLOCK = 128
"""Inputs, and outputs, of a block that shares a scale (DeepSeek-V3, section 3.3.2)."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight [N, K]; every tensor is contiguous.

    Attributes:
        elements_NK: int8 or float8_e4m3fn.
        scale: float32. [N]: one scale for each output (all equal if the checkpoint has one for the tensor); inputs are
            quantized with one scale for each token. [I, J]: one scale for each block; inputs are quantized with one for
            each 128 inputs of a token.
        input_scale: float32 [1], scale of the inputs if it was calibrated offline; None: computed for each token. Not
            with scales by block.
    """

    elements_NK: torch.Tensor
    scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    @property
    def blocked(self) -> bool:
        """Whether there is a scale for each block."""
        return self.scale.ndim == self.elements_NK.ndim

    @property
    def experts(self) -> tuple[int, ...]:
        """The leading dimension [E], or () for a single weight."""
        return tuple(self.elements_NK.shape[:-2])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors that the weight has."""
        return [one for one in (self.elements_NK, self.scale, self.input_scale) if one is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def check(self) -> None:
        """Raise ValueError if the tensors do not fit together; the message says what was expected."""
        elements, scale = self.elements_NK, self.scale
        if elements.dtype not in LARGEST or elements.ndim < 2:
            raise ValueError(
                f"elements must be {' or '.join(map(str, LARGEST))} [..., outputs, inputs], not {elements.dtype} "
                f"{tuple(elements.shape)}"
            )
        outputs, inputs = elements.shape[-2:]
        each, blocks = (*self.experts, outputs), (*self.experts, -(-outputs // BLOCK), -(-inputs // BLOCK))
        if scale.dtype != torch.float32 or tuple(scale.shape) not in {each, blocks}:
            raise ValueError(f"scales must be float32 {each} or {blocks}, not {scale.dtype} {tuple(scale.shape)}")
        given = self.input_scale
        if given is not None and (self.blocked or given.dtype != torch.float32 or given.numel() != 1):
            raise ValueError("an input scale is one float32 element, and not for weights with scales by block")
        if not all(tensor.is_contiguous() for tensor in self.tensors):
            raise ValueError("a scaled weight must be contiguous")


def dequantize(weight: ScaledWeight) -> torch.Tensor:
    """The weight's values, float32 [..., N, K]."""
    elements, scale = weight.elements_NK.float(), weight.scale
    if not weight.blocked:
        return elements * scale[..., None]
    outputs, inputs = elements.shape[-2:]
    spread = scale.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return elements * spread[..., :outputs, :inputs]
