"""Keys and values of one layer in pages: in a float dtype, or quantized with a scale for each slot and head.

A quantized element times its scale is the value. int8 has evenly spaced steps; float8 (e4m3) finer ones near zero.
A value that is not finite makes its scale not finite, so an overflow stays visible. Knows no sequences.

Shape letters: P pages, S slots per page, H key-value heads, D head dim, E value dim, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tessera_kernels.cpu import huge_pages

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest quantized magnitude, by quantized dtype: the largest magnitude of a slot and head becomes this."""
SCALE_BYTES = 4
"""Bytes of a float32 scale."""
_SMALLEST_SCALE = 1e-30


@dataclass(frozen=True)
class PagedKV:
    """Pages of keys and values.

    Attributes:
        key_PSHD: keys, [pages, slots, kv heads, head dim].
        value_PSHE: values, [pages, slots, kv heads, value dim].
        key_scale_PSH: float32 scales of quantized keys; None if keys are not quantized.
        value_scale_PSH: float32 scales of quantized values; None if values are not quantized.
    """

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
        """Storage of one layer, filled with zeros.

        Args:
            pages: number of pages.
            page_size: slots of a page.
            heads: key-value heads.
            dims: head dims of keys and of values.
            dtype: dtype of the elements; those of `LARGEST` are quantized and have scales.
            device: device of the tensors.
            pinned: whether memory is page-locked, so that a CUDA device copies it directly; only on a CPU.
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
        """Storage of several layers, each a view of one tensor, in order. Other arguments are those of `zeros`."""

        def zeros(*shape: int, kind: torch.dtype) -> torch.Tensor:
            size = (layers, pages, page_size, heads, *shape)
            empty = torch.empty(size, dtype=kind, device=device, pin_memory=pinned)
            return (empty if pinned else huge_pages.advise(empty)).zero_()

        keys, values = zeros(dims[0], kind=dtype), zeros(dims[1], kind=dtype)
        if dtype not in LARGEST:
            return [cls(*views) for views in zip(keys, values, strict=True)]
        key_scales, value_scales = zeros(kind=torch.float32), zeros(kind=torch.float32)
        return [cls(*views) for views in zip(keys, values, key_scales, value_scales, strict=True)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors; a page is the same row of each."""
        tensors = (self.key_PSHD, self.value_PSHE, self.key_scale_PSH, self.value_scale_PSH)
        return [tensor for tensor in tensors if tensor is not None]


def slot_bytes(heads: int, dims: tuple[int, int], dtype: torch.dtype) -> int:
    """Bytes of one slot of keys and values, scales included."""
    return heads * (sum(dims) * dtype.itemsize + (2 * SCALE_BYTES if dtype in LARGEST else 0))


def quantize(values_THD: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize values [T, H, D]: elements [T, H, D] of the dtype, and float32 scales [T, H]."""
    largest = LARGEST[dtype]
    scale_TH = values_THD.abs().amax(dim=-1).float() / largest
    scaled_THD = values_THD.float() / scale_TH.clamp_min(_SMALLEST_SCALE)[..., None]
    if not dtype.is_floating_point:
        scaled_THD = scaled_THD.round()
    return scaled_THD.clamp(-largest, largest).to(dtype), scale_TH


def dequantize(elements: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Values [..., D] in `dtype`: elements [..., D] times their scale [...], or the elements if there is no scale."""
    return elements.to(dtype) if scale is None else (elements.float() * scale[..., None]).to(dtype)
