"""Storage of one layer's keys and values in pages: as they are, or quantized with a scale for each slot and head.

Quantized numbers times their scale are the values. int8 has evenly spaced steps; float8 (e4m3) finer ones near zero.
A value that is not finite makes its scale not finite, so an overflow stays to be seen.

Shape letters: P pages, S slots per page, H key-value heads, D head dim, E value dim, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.cpu import huge_pages

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""What the largest number of a slot and head becomes, by quantized dtype."""
SCALE_BYTES = 4
_SMALLEST = 1e-30


@dataclass(frozen=True)
class PagedKV:
    """Keys [P, S, H, D], values [P, S, H, E], and where they are quantized float32 scales [P, S, H] of both."""

    key_PSHD: torch.Tensor
    value_PSHE: torch.Tensor
    key_scale_PSH: torch.Tensor | None = None
    value_scale_PSH: torch.Tensor | None = None

    @classmethod
    def zeros(
        cls,
        pages: int,
        page_size: int,
        heads: int,
        dims: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        pinned: bool = False,
    ) -> PagedKV:
        """Empty storage.

        Args:
            pages: how many.
            page_size: slots of each.
            heads: key-value heads.
            dims: of keys and of values.
            dtype: of what is stored; one of `LARGEST` is quantized.
            device: where.
            pinned: whether a CUDA device copies it without a detour; only on a CPU.
        """

        return cls.stacked(1, pages, page_size, heads, dims, dtype=dtype, device=device, pinned=pinned)[0]

    @classmethod
    def stacked(
        cls,
        layers: int,
        pages: int,
        page_size: int,
        heads: int,
        dims: tuple[int, int],
        *,
        dtype: torch.dtype,
        device: torch.device,
        pinned: bool = False,
    ) -> list[PagedKV]:
        """Empty storage of several layers, each tensor's right behind that of the layer before. See `zeros`."""

        def made(*shape: int, kind: torch.dtype) -> torch.Tensor:
            size = (layers, pages, page_size, heads, *shape)
            empty = torch.empty(size, dtype=kind, device=device, pin_memory=pinned)
            return (empty if pinned else huge_pages.advise(empty)).zero_()

        keys, values = made(dims[0], kind=dtype), made(dims[1], kind=dtype)
        if dtype not in LARGEST:
            return [cls(*views) for views in zip(keys, values, strict=True)]
        key_scales, value_scales = made(kind=torch.float32), made(kind=torch.float32)
        return [cls(*views) for views in zip(keys, values, key_scales, value_scales, strict=True)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them; a page is the same row of each."""
        found = (self.key_PSHD, self.value_PSHE, self.key_scale_PSH, self.value_scale_PSH)
        return [tensor for tensor in found if tensor is not None]


def slot_bytes(heads: int, dims: tuple[int, int], dtype: torch.dtype) -> int:
    """Bytes of one slot, scales included."""
    return heads * (sum(dims) * dtype.itemsize + (2 * SCALE_BYTES if dtype in LARGEST else 0))


def quantize(values_THD: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers [T, H, D] of a quantized dtype, and their float32 scales [T, H]."""
    largest = LARGEST[dtype]
    scale_TH = values_THD.abs().amax(dim=-1).float() / largest
    scaled_THD = values_THD.float() / scale_TH.clamp_min(_SMALLEST)[..., None]
    if not dtype.is_floating_point:
        scaled_THD = scaled_THD.round()
    return scaled_THD.clamp(-largest, largest).to(dtype), scale_TH


def dequantize(numbers: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The values [..., D] of `dtype`; where there is no scale [...], the numbers are the values."""
    return numbers.to(dtype) if scale is None else (numbers.float() * scale[..., None]).to(dtype)
