"""The memory of KV pages on the device and on the host, and the copies between pages.

Knows how many pages fit into a number of bytes. Does not know who holds a page: `tessera.cache` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tessera.cache.transfers import Copy, Offload, Transfer
from tessera.models import attention
from tessera_kernels.storage.paged_kv import PagedKV


@dataclass(frozen=True)
class PageStorage:
    """Storage of one decoder's keys and values.

    Attributes:
        page_size: token slots of a page.
        pages: pages on the device that requests may hold.
        host_pages: pages on the host.
        caches: storage on the device, one per layer. Behind the requests' pages lie those that padding writes to.
        host_caches: storage on the host, one per layer.
    """

    page_size: int
    pages: int
    host_pages: int
    caches: list[PagedKV]
    host_caches: list[PagedKV]

    @classmethod
    def allocate(
        cls,
        layers: attention.Probe,
        *,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        device_bytes: int,
        host_bytes: int,
        padding_pages: int = 0,
    ) -> PageStorage:
        """Allocate storage and attach it to the model's attention modules.

        Args:
            layers: the attention layers, from a probe.
            page_size: token slots of a page.
            dtype: what keys and values are stored as.
            device: of the model.
            device_bytes: bytes for pages on the device; one page is allocated in any case.
            host_bytes: bytes for pages on the host; 0 for none.
            padding_pages: pages on the device beyond those of requests.
        """
        page_bytes = attention.bytes_per_token(layers, dtype) * page_size
        pages, host_pages = max(1, device_bytes // page_bytes), host_bytes // page_bytes
        caches, host_caches = (
            attention.make_caches(layers, pages=count, page_size=page_size, dtype=dtype, device=place)
            for count, place in ((pages + padding_pages, device), (host_pages, torch.device("cpu")))
        )
        attention.attach_caches(layers, caches)
        return cls(page_size, pages, host_pages, caches, host_caches)

    def move(self, transfers: Sequence[Transfer]) -> None:
        """Copy pages inside the device and between the device and the host, in the given order."""
        for transfer in transfers:
            for device, host in zip(self.caches, self.host_caches, strict=True):
                for on_device, on_host in zip(device.tensors, host.tensors, strict=True):
                    if isinstance(transfer, Copy):
                        on_device[transfer.target] = on_device[transfer.source]
                    elif isinstance(transfer, Offload):
                        on_host[transfer.slot].copy_(on_device[transfer.page], non_blocking=True)
                    else:
                        on_device[transfer.page].copy_(on_host[transfer.slot], non_blocking=True)
