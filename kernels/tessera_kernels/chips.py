"""Families of GPU chips, with what kernels need to choose their tiles: architecture, warp size and shared memory.

Knows nothing of configurations that were tuned for one device; `tuning` looks them up by the device's name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Chip:
    """A family of chips that kernels are compiled for.

    Attributes:
        name: name of the family, as the targets of the compile gate have it: `sm_90` or `gfx942`.
        backend: Triton's name of the vendor's back end, `cuda` or `hip`.
        arch: name of the architecture in that back end: 90 or `gfx942`.
        warp: number of threads of a warp.
        shared: bytes of shared memory that one program may use.
        multiprocessors: number of multiprocessors of the family's most common device.
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int
    multiprocessors: int

    @property
    def capability(self) -> int:
        """CUDA compute capability without the dot (80, 89, 90, 100); 0 for a chip of AMD."""
        return self.arch if isinstance(self.arch, int) else 0


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("sm_80", "cuda", 80, 32, 163 * 1024, 108),
        Chip("sm_89", "cuda", 89, 32, 99 * 1024, 128),
        Chip("sm_90", "cuda", 90, 32, 227 * 1024, 132),
        Chip("sm_100", "cuda", 100, 32, 227 * 1024, 148),
        Chip("gfx942", "hip", "gfx942", 64, 64 * 1024, 304),
    )
}
"""Every family that kernels are compiled for, by name."""


def chip_of(device: torch.device) -> Chip:
    """The family whose tiles fit the device.

    A CPU (Triton's interpreter) counts as Hopper, because the kernels for Hopper are the largest.
    """
    if device.type != "cuda":
        return CHIPS["sm_90"]
    if torch.version.hip:
        return CHIPS["gfx942"]
    major, minor = torch.cuda.get_device_capability(device)
    if major in {10, 11}:
        return CHIPS["sm_100"]
    if major == 9:
        return CHIPS["sm_90"]
    # Consumer chips of every generation have as little shared memory as Ada's.
    return CHIPS["sm_80"] if (major, minor) == (8, 0) else CHIPS["sm_89"]


def multiprocessors_of(device: torch.device) -> int:
    """Number of multiprocessors of the device; that of Hopper for a CPU (Triton's interpreter)."""
    if device.type != "cuda":
        return CHIPS["sm_90"].multiprocessors
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def has_float8(device: torch.device) -> bool:
    """Whether Triton can convert to float8 (e4m3) on the device; its interpreter on a CPU can."""
    return device.type != "cuda" or bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= (8, 9)
