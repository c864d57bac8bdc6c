"""A linear layer's weight in few bits: what is stored, in which order, and what it stands for.

Four bits are stored two in a byte, in one order for every format: inputs are cut into runs of R that share their scale,
and byte r of a block holds input r of the block's first run (low bits) and input r of its second (high bits). So a
kernel unpacks with a mask and a shift, and multiplies each half with inputs that are neighbours in memory. A block of
all outputs is contiguous: what one program reads in one step is one piece of memory. Does not know who multiplies.

Shape letters: N outputs, K inputs, G groups of inputs that share a scale, B blocks, R inputs of a run. Weights of
experts have one more dimension in front of every tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

Format = Literal["dense", "int8", "fp8", "int4", "mxfp4", "nvfp4"]
FORMATS: tuple[str, ...] = get_args(Format)
NIBBLES = ("int4", "mxfp4", "nvfp4")
"""Formats of four bits."""
LONGEST_RUN = 64
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of an e2m1 number stand for (OCP Microscaling Formats 1.0, table 5)."""
MIDDLE = 8
"""The number that stands for zero in a symmetric int4 weight."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [N, K]; every tensor is contiguous.

    Attributes:
        format: dense (16 or 32 bits as they are), int8, fp8 (e4m3), int4 (0 to 15), mxfp4 or nvfp4 (e2m1).
        inputs: K.
        group: inputs that share a scale: 32 (mxfp4), 16 (nvfp4), any multiple of a run else.
        elements: four bits: uint8 [B, N, R], see the module; else [N, K]: int8, float8_e4m3fn, or the weight itself.
        scale_GN: float [G, N]; mxfp4: uint8, the exponent plus 127 (e8m0); nvfp4: float8_e4m3fn; None where dense.
        zero_GN: int4 alone. uint8: the number that stands for zero; float: what is added to number · scale. None: 8.
        tensor_scale: nvfp4 alone: float32 with one element (one an expert), multiplied with every scale.
    """

    format: Format
    inputs: int
    group: int
    elements: torch.Tensor
    scale_GN: torch.Tensor | None = None
    zero_GN: torch.Tensor | None = None
    tensor_scale: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        """N."""
        return self.elements.shape[-2]

    @property
    def run(self) -> int:
        """R."""
        return run_of(self.group)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        found = (self.elements, self.scale_GN, self.zero_GN, self.tensor_scale)
        return [tensor for tensor in found if tensor is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def check(self) -> None:
        """Raise ValueError where the parts do not fit together, with what was expected."""
        if self.format not in FORMATS:
            raise ValueError(f"an unknown format {self.format!r}; there are {', '.join(FORMATS)}")
        if self.format == "dense":
            if self.elements.dtype not in FLOATS or self.elements.shape[-1] != self.inputs:
                raise ValueError(
                    f"a dense weight must be float [..., {self.inputs}], not {self.elements.dtype} "
                    f"{tuple(self.elements.shape)}"
                )
            return
        expected = {"mxfp4": 32, "nvfp4": 16}.get(self.format)
        if self.group < 1 or self.group % self.run or self.run & (self.run - 1) or self.run < 16:
            raise ValueError(f"groups must be of 16, 32, or a multiple of 64 inputs, not {self.group}")
        if expected is not None and self.group != expected:
            raise ValueError(f"{self.format} has groups of {expected}, not of {self.group}")
        self._check_elements()
        self._check_scales()
        if not all(tensor.is_contiguous() for tensor in self.tensors):
            raise ValueError("a quantized weight must be contiguous")

    def _check_elements(self) -> None:
        dtype = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.get(self.format, torch.uint8)
        shape = tuple(self.elements.shape)
        if self.format in NIBBLES:
            fits = len(shape) >= 3 and shape[-1] == self.run and shape[-3] == -(-self.inputs // (2 * self.run))
            wanted = f"[..., {-(-self.inputs // (2 * self.run))}, outputs, {self.run}]"
        else:
            fits, wanted = len(shape) >= 2 and shape[-1] == self.inputs, f"[..., outputs, {self.inputs}]"
        if not fits or self.elements.dtype != dtype:
            raise ValueError(f"{self.format} elements must be {dtype} {wanted}, not {self.elements.dtype} {shape}")

    def _check_scales(self) -> None:
        dtypes = {"mxfp4": (torch.uint8,), "nvfp4": (torch.float8_e4m3fn,)}.get(self.format, FLOATS)
        shape = (*self.experts, -(-self.inputs // self.group), self.outputs)
        scale = self.scale_GN
        if scale is None or tuple(scale.shape) != shape or scale.dtype not in dtypes:
            came = "none" if scale is None else f"{scale.dtype} {tuple(scale.shape)}"
            raise ValueError(f"{self.format} scales must be {' or '.join(map(str, dtypes))} {shape}, not {came}")
        zero = self.zero_GN
        if zero is not None and (
            self.format != "int4" or tuple(zero.shape) != shape or zero.dtype not in (torch.uint8, *FLOATS)
        ):
            raise ValueError(f"zeros are for int4, uint8 or float {shape}, not {zero.dtype} {tuple(zero.shape)}")
        whole = self.tensor_scale
        if whole is not None and (
            self.format != "nvfp4" or whole.dtype != torch.float32 or tuple(whole.shape) != (self.experts or (1,))
        ):
            raise ValueError(
                f"a tensor's scale is for nvfp4, float32 {self.experts or (1,)}; this is {self.format}, {whole.dtype} "
                f"{tuple(whole.shape)}"
            )

    @property
    def experts(self) -> tuple[int, ...]:
        """[E], or nothing where there is one weight alone."""
        return tuple(self.elements.shape[: -3 if self.format in NIBBLES else -2])


def run_of(group: int) -> int:
    """Inputs of a run where `group` inputs share a scale."""
    return min(group, LONGEST_RUN)


def pack(elements_NK: torch.Tensor, run: int) -> torch.Tensor:
    """Numbers [..., N, K] below 16 as bytes [..., B, N, R]; inputs that a block has too many are 0."""
    *front, outputs, inputs = elements_NK.shape
    blocks = -(-inputs // (2 * run))
    padded = torch.nn.functional.pad(elements_NK.to(torch.uint8), (0, blocks * 2 * run - inputs))
    low, high = padded.reshape(*front, outputs, blocks, 2, run).unbind(-2)
    return (low | (high << 4)).transpose(-3, -2).contiguous()


def unpack(bytes_BNR: torch.Tensor, inputs: int) -> torch.Tensor:
    """Numbers [..., N, K] of bytes [..., B, N, R]."""
    rows = bytes_BNR.transpose(-3, -2)
    return torch.stack([rows & 15, rows >> 4], dim=-2).flatten(-3)[..., :inputs]


def dequantize(weight: QuantizedWeight) -> torch.Tensor:
    """What a weight stands for: float32 [..., N, K]."""
    if weight.format == "dense":
        return weight.elements.float()
    assert weight.scale_GN is not None

    def spread(values_GN: torch.Tensor) -> torch.Tensor:
        return values_GN.float().transpose(-2, -1).repeat_interleave(weight.group, dim=-1)[..., : weight.inputs]

    if weight.format not in NIBBLES:
        return weight.elements.float() * spread(weight.scale_GN)
    numbers = unpack(weight.elements, weight.inputs)
    if weight.format == "int4":
        zero = weight.zero_GN
        if zero is not None and zero.dtype.is_floating_point:
            return numbers.float() * spread(weight.scale_GN) + spread(zero)
        return (numbers.float() - (MIDDLE if zero is None else spread(zero))) * spread(weight.scale_GN)
    values = torch.tensor((*E2M1, *(-value for value in E2M1)), device=numbers.device)[numbers.int()]
    if weight.format == "mxfp4":
        return values * spread(exponents(weight.scale_GN))
    values = values * spread(weight.scale_GN)
    if weight.tensor_scale is None:
        return values
    return values * weight.tensor_scale.reshape((*weight.experts, 1, 1) if weight.experts else (1,))


def exponents(bits: torch.Tensor) -> torch.Tensor:
    """Powers of two of e8m0 bits, float32; 255 is not a number."""
    # A float32's exponent has the same offset; the smallest of ours is one of its subnormal numbers.
    powers = torch.where(bits == 0, 1 << 22, bits.int() << 23).view(torch.float32)
    return torch.where(bits == 255, torch.nan, powers)
