"""Transparent huge pages for large host tensors, so that reading them misses the TLB less often.

A TLB miss is expensive in a virtual machine, which translates each address twice. Works on Linux only; where the
kernel has no huge pages, the memory stays as it is.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

HUGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page on x86-64."""
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def advise(tensor: torch.Tensor) -> torch.Tensor:
    """Ask the kernel to back a host tensor with huge pages, and return the tensor.

    Only memory that has not been touched yet is affected. A tensor of another device is returned as it is.
    """
    if _libc is None or tensor.device.type != "cpu":
        return tensor
    begin = -(-tensor.data_ptr() // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    size = (tensor.data_ptr() + tensor.nbytes - begin) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if size > 0:
        # The call is a hint: a kernel without huge pages returns an error, which changes nothing.
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)
    return tensor
