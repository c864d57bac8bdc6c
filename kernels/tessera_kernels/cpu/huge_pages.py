"""Large tensors of the host in huge pages, so that walking through them misses the address cache less often.

A virtual machine looks addresses up in two tables, one behind the other, which makes a miss dear. Linux alone; where
the kernel has no huge pages to give, memory is as it was.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

HUGE = 1 << 21
"""Bytes of a huge page."""
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def advise(tensor: torch.Tensor) -> torch.Tensor:
    """Ask for huge pages behind a tensor of the host whose memory nobody has touched yet; gives it back."""
    if _libc is None or tensor.device.type != "cpu":
        return tensor
    begin = -(-tensor.data_ptr() // HUGE) * HUGE
    size = (tensor.data_ptr() + tensor.nbytes - begin) // HUGE * HUGE
    if size > 0:
        # A wish: a kernel that does not know it says no, and nothing is lost.
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)
    return tensor
