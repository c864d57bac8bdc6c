"""The ragged batch of paged attention: query rows and pages of each sequence.

Shape letters: B sequences, M page-table width, S slots per page.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ragged:
    """Query rows and pages of each sequence. All tensors are on the cache's device.

    Attributes:
        page_table_BM: int32; entry [b, i] is the page with positions i*S … (i+1)*S-1 of sequence b; unused entries 0.
        context_B: int64; positions of each sequence in the cache, this step's tokens included.
        query_counts: query rows of each sequence this step; they are its last positions.
    """

    page_table_BM: torch.Tensor
    context_B: torch.Tensor
    query_counts: list[int]
