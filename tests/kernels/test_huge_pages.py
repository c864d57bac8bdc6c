"""Huge pages are a hint to the kernel: a tensor has the same contents with them and without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera_kernels.cpu import huge_pages
from tessera_kernels.storage.paged_kv import PagedKV


@pytest.mark.parametrize("size", [0, 1, huge_pages.HUGE_PAGE_BYTES, 5 * huge_pages.HUGE_PAGE_BYTES + 3])
def test_advise_returns_the_same_tensor_and_it_can_be_used(size: int) -> None:
    empty = torch.empty(size, dtype=torch.uint8)
    assert huge_pages.advise(empty) is empty
    empty.fill_(7)
    assert int(empty.sum(dtype=torch.int64)) == 7 * size


def test_a_large_tensor_is_marked_for_huge_pages_where_the_kernel_has_them() -> None:
    given = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not given.is_file() or "[never]" in given.read_text():
        pytest.skip("this kernel has no transparent huge pages")
    tensor = huge_pages.advise(torch.empty(64 * huge_pages.HUGE_PAGE_BYTES, dtype=torch.uint8)).zero_()
    inside = tensor.data_ptr() + tensor.nbytes // 2
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        begin, _, end = line.split()[0].partition("-")
        if end and int(begin, 16) <= inside < int(end, 16):
            found = next(one for one in lines if one.startswith("VmFlags"))
            assert "hg" in found.split(), "the kernel has marked the range"
            return
    raise AssertionError("no mapping has the tensor's address")


def test_storage_begins_with_zeros() -> None:
    for cache in PagedKV.stacked(3, 500, 16, 3, (64, 64), dtype=torch.float16, device=torch.device("cpu")):
        assert not any(tensor.any() for tensor in cache.tensors)
