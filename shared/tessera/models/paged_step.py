"""What attention over the paged cache needs to know of a step, from its chunks. Does not know models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.models.attention import AttentionBatch
from tessera.sequence.batch import Chunk
from tessera_kernels.paged_attention import Ragged


def attention_batch(chunks: Sequence[Chunk], page_size: int, device: torch.device) -> AttentionBatch:
    """Where the keys and values of chunks go, and who sees what."""
    slots = [
        chunk.request.pages[position // page_size] * page_size + position % page_size
        for chunk in chunks
        for position in range(chunk.start, chunk.start + chunk.count)
    ]
    held = [chunk.request.pages[: -(-(chunk.start + chunk.count) // page_size)] for chunk in chunks]
    table_BM = torch.zeros(len(chunks), max(map(len, held)), dtype=torch.int32)
    for row, pages in enumerate(held):
        table_BM[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    context_B = torch.tensor([chunk.start + chunk.count for chunk in chunks])
    ragged = Ragged(table_BM.to(device), context_B.to(device), [chunk.count for chunk in chunks])
    return AttentionBatch(torch.tensor(slots, dtype=torch.long, device=device), ragged)
