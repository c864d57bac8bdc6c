"""A linear layer's weight in few bits: its elements, scales and zero points, and their order in memory.

Four-bit elements are packed two to a byte, in one order for all formats: inputs are cut into runs of R that share their
scale; byte r of a block holds input r of the block's first run (low bits) and input r of its second run (high bits). So
a kernel unpacks with a mask and a shift, and multiplies each half with inputs that are adjacent in memory. A block of
all outputs is contiguous: one program reads one piece of memory in one step. Knows no kernels.

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
"""Formats with four-bit elements."""
LONGEST_RUN = 64
"""Inputs of a run at most: 64 packed bytes for each output and block."""
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of dense weights, and of float scales and zeros."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the lower three bits of an e2m1 element (OCP Microscaling Formats 1.0, table 5)."""
INT4_ZERO_POINT = 8
"""Zero point of a symmetric int4 weight: the element that stands for zero."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight [N, K]; every tensor is contiguous.

    Attributes:
        format: dense (not quantized, 16 or 32 bits), int8, fp8 (e4m3), int4 (0 to 15), mxfp4 or nvfp4 (both e2m1).
        inputs: K.
        group: inputs that share a scale: 32 for mxfp4, 16 for nvfp4, any multiple of a run for other formats.
        elements: uint8 [B, N, R] for four-bit formats, packed as the module says; [N, K] for the others: int8,
            float8_e4m3fn, or the float weight.
        scale_GN: float [G, N]; for mxfp4 uint8, the exponent plus 127 (e8m0); for nvfp4 float8_e4m3fn; None for dense.
        zero_GN: for int4 only. uint8: zero points; float: values that are added to element · scale; None: the zero
            point 8.
        tensor_scale: for nvfp4 only: float32 [1] (or [experts]), multiplied with every scale.
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
        """All tensors that the weight has."""
        tensors = (self.elements, self.scale_GN, self.zero_GN, self.tensor_scale)
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def check(self) -> None:
        """Raise ValueError if the tensors do not fit together; the message says what was expected."""
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
            given = "none" if scale is None else f"{scale.dtype} {tuple(scale.shape)}"
            raise ValueError(f"{self.format} scales must be {' or '.join(map(str, dtypes))} {shape}, not {given}")
        zero = self.zero_GN
        if zero is not None and (
            self.format != "int4" or tuple(zero.shape) != shape or zero.dtype not in (torch.uint8, *FLOATS)
        ):
            raise ValueError(f"zeros are for int4, uint8 or float {shape}, not {zero.dtype} {tuple(zero.shape)}")
        tensor_scale = self.tensor_scale
        if tensor_scale is not None and (
            self.format != "nvfp4"
            or tensor_scale.dtype != torch.float32
            or tuple(tensor_scale.shape) != (self.experts or (1,))
        ):
            raise ValueError(
                f"a tensor's scale is for nvfp4, float32 {self.experts or (1,)}; this is {self.format}, "
                f"{tensor_scale.dtype} {tuple(tensor_scale.shape)}"
            )

    @property
    def experts(self) -> tuple[int, ...]:
        """The leading dimension [E], or () for a single weight."""
        return tuple(self.elements.shape[: -3 if self.format in NIBBLES else -2])


def run_of(group: int) -> int:
    """Inputs of a run if `group` inputs share a scale."""
    return min(group, LONGEST_RUN)


def pack(elements_NK: torch.Tensor, run: int) -> torch.Tensor:
    """Pack elements [..., N, K] from 0 to 15 into bytes [..., B, N, R]; the last block is padded with 0."""
    *front, outputs, inputs = elements_NK.shape
    blocks = -(-inputs // (2 * run))
    padded = torch.nn.functional.pad(elements_NK.to(torch.uint8), (0, blocks * 2 * run - inputs))
    low, high = padded.reshape(*front, outputs, blocks, 2, run).unbind(-2)
    return (low | (high << 4)).transpose(-3, -2).contiguous()


def unpack(bytes_BNR: torch.Tensor, inputs: int) -> torch.Tensor:
    """Elements [..., N, K] of packed bytes [..., B, N, R]."""
    rows = bytes_BNR.transpose(-3, -2)
    return torch.stack([rows & 15, rows >> 4], dim=-2).flatten(-3)[..., :inputs]


def dequantize(weight: QuantizedWeight) -> torch.Tensor:
    """The weight's values, float32 [..., N, K]."""
    if weight.format == "dense":
        return weight.elements.float()
    assert weight.scale_GN is not None

    def spread(values_GN: torch.Tensor) -> torch.Tensor:
        return values_GN.float().transpose(-2, -1).repeat_interleave(weight.group, dim=-1)[..., : weight.inputs]

    if weight.format not in NIBBLES:
        return weight.elements.float() * spread(weight.scale_GN)
    elements = unpack(weight.elements, weight.inputs)
    if weight.format == "int4":
        zero = weight.zero_GN
        if zero is not None and zero.dtype.is_floating_point:
            return elements.float() * spread(weight.scale_GN) + spread(zero)
        return (elements.float() - (INT4_ZERO_POINT if zero is None else spread(zero))) * spread(weight.scale_GN)
    values = torch.tensor((*E2M1, *(-value for value in E2M1)), device=elements.device)[elements.int()]
    if weight.format == "mxfp4":
        return values * spread(exponents(weight.scale_GN))
    values = values * spread(weight.scale_GN)
    if weight.tensor_scale is None:
        return values
    return values * weight.tensor_scale.reshape((*weight.experts, 1, 1) if weight.experts else (1,))


def exponents(bits: torch.Tensor) -> torch.Tensor:
    """Powers of two of e8m0 exponents, float32; 255 is NaN."""
    # float32's exponent has the same bias; e8m0's smallest power is a subnormal float32.
    powers = torch.where(bits == 0, 1 << 22, bits.int() << 23).view(torch.float32)
    return torch.where(bits == 255, torch.nan, powers)
