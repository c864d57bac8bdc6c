"""The tensors that a step's forward pass reads, made from its chunks: fresh ones of any length, or static ones.

Static inputs are for decode steps, which compute one token of each sequence. Their length is one of a few padded sizes.
Rows behind the last sequence are padding, which writes its keys and values to pages that no request ever has. So a CUDA
graph that was captured with static inputs can be replayed for every later step. Knows neither models nor graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tessera.device.copies import to_device
from tessera.models.attention import AttentionBatch
from tessera.sequence.batch import Batch, Chunk
from tessera.sequence.request import PENDING
from tessera_kernels.paged_attention import Ragged

_IDS, _POSITIONS, _SLOTS, _CONTEXTS, _SOURCES = range(5)
_LINES = 5
SIZE_STEP, FINE_MAX_ROWS = 8, 256
"""Padded sizes are multiples of `SIZE_STEP` rows up to `FINE_MAX_ROWS`, and of twice as many rows beyond."""
STAGING_BUFFERS = 2
"""Number of steps whose inputs may be copied to a GPU at the same time."""


@dataclass(frozen=True)
class StepInputs:
    """Inputs of one forward pass.

    Attributes:
        ids_1T: int64 token ids.
        position_1T: int64 positions of the tokens in their requests.
        batch: the slots that keys and values are written to, and the positions that each query sees.
        rows_R: int64 indices of the tokens whose logits are wanted. Those to be sampled come first.
        sampled: how many of `rows_R` are to be sampled.
    """

    ids_1T: torch.Tensor
    position_1T: torch.Tensor
    batch: AttentionBatch
    rows_R: torch.Tensor
    sampled: int


def fresh_inputs(batch: Batch, page_size: int, device: torch.device) -> StepInputs:
    """Inputs of any batch, in new tensors on `device`."""
    chunks = batch.chunks
    ids = [token for chunk in chunks for token in chunk.token_ids]
    positions = [p for chunk in chunks for p in range(chunk.start, chunk.start + chunk.count)]
    ends = list(itertools.accumulate(chunk.count for chunk in chunks))
    sampled = [
        row
        for end, chunk in zip(ends, chunks, strict=True)
        if chunk.completes and chunk.request.sampling is not None
        for row in range(end - 1 - len(chunk.draft_ids), end)
    ]
    scored = [
        end - chunk.count + position - chunk.start
        for end, chunk in zip(ends, chunks, strict=True)
        for position in chunk.request.scored_positions(chunk.start, chunk.count)
    ]
    ids_T = to_device(ids, device, torch.long)
    if batch.pending is not None:
        pending_rows = [
            (end - 1, batch.pending.rows[chunk.request])
            for end, chunk in zip(ends, chunks, strict=True)
            if ids[end - 1] == PENDING
        ]
        if pending_rows:
            places, rows = (to_device([pair[side] for pair in pending_rows], device, torch.long) for side in (0, 1))
            ids_T[places] = batch.pending.tokens_R[rows]
    return StepInputs(
        ids_T[None],
        to_device(positions, device, torch.long)[None],
        attention_batch(chunks, page_size, device),
        to_device(sampled + scored, device, torch.long),
        len(sampled),
    )


def attention_batch(chunks: Sequence[Chunk], page_size: int, device: torch.device) -> AttentionBatch:
    """The cache slots that the chunks' keys and values are written to, and the positions that each query sees."""
    slots = [
        chunk.request.pages[position // page_size] * page_size + position % page_size
        for chunk in chunks
        for position in range(chunk.start, chunk.start + chunk.count)
    ]
    return AttentionBatch(to_device(slots, device, torch.long), _ragged(chunks, page_size, device))


def _ragged(chunks: Sequence[Chunk], page_size: int, device: torch.device) -> Ragged:
    used = [-(-(chunk.start + chunk.count) // page_size) for chunk in chunks]
    pages_BM = np.zeros((len(chunks), max(used)), np.int32)
    for row, (count, chunk) in enumerate(zip(used, chunks, strict=True)):
        pages_BM[row, :count] = chunk.request.pages[:count]
    table = torch.from_numpy(pages_BM)
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    context = to_device([chunk.start + chunk.count for chunk in chunks], device, torch.long)
    return Ragged(table, context, [chunk.count for chunk in chunks])


def padded_sizes(max_rows: int) -> list[int]:
    """Rows that decode steps of up to `max_rows` sequences are padded to: 1, 2, 4, 8, 16, 24, 32, …, `max_rows`."""
    small = [size for size in (1, 2, 4) if size < max_rows]
    fine = range(SIZE_STEP, min(max_rows, FINE_MAX_ROWS + 1), SIZE_STEP)
    coarse = range(FINE_MAX_ROWS + 2 * SIZE_STEP, max_rows, 2 * SIZE_STEP)
    return [*small, *fine, *coarse, max_rows]


def is_decode(batch: Batch) -> bool:
    """Whether a batch has one token of each sequence, whose next token is sampled, and nothing else is wanted of it."""
    return bool(batch.chunks) and all(
        chunk.count == 1
        and chunk.completes
        and chunk.request.sampling is not None
        and not chunk.request.scored_positions(chunk.start, 1)
        # The last token of a prompt with images may be a part of one.
        and (chunk.request.media is None or chunk.start >= chunk.request.prompt_length)
        for chunk in batch.chunks
    )


class _StagingBuffer:
    """Host memory that a step's inputs are written to, and that stays untouched until a GPU has copied them.

    Attributes:
        numbers: int64 [lines, rows]: ids, positions, slots, contexts and sources of each row.
        pages: int32 page tables, as many as fit.
        copied: recorded behind the copy to the GPU; None on a CPU.
    """

    def __init__(self, max_rows: int, width: int, *, pinned: bool) -> None:
        self.numbers = torch.empty(_LINES, max_rows, dtype=torch.int64, pin_memory=pinned)
        self.pages = torch.empty(max_rows * width, dtype=torch.int32, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the last contents have been copied."""
        if self.copied is not None:
            self.copied.synchronize()

    def mark(self) -> None:
        """Record that the copy of the present contents has been queued."""
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream())


class StaticInputs:
    """Inputs of decode steps in memory that stays the same.

    Args:
        max_rows: largest number of rows.
        width: most pages of a sequence.
        page_size: token slots of a page.
        padding_page: the first of the `padding_pages` pages that only padding writes to.
        device: of the model.
    """

    def __init__(self, max_rows: int, *, width: int, page_size: int, padding_page: int, device: torch.device) -> None:
        self.max_rows, self.page_size = max_rows, page_size
        rows = torch.arange(max_rows)
        self._padding_page_N = padding_page + rows // page_size
        # Every row of padding has a slot of its own, so that no slot is written twice in a step.
        lines = [0 * rows, 0 * rows, padding_page * page_size + rows, 0 * rows + 1, 0 * rows - 1]
        self._padding_LN = torch.stack(lines)
        self._numbers_LN = self._padding_LN.to(device, copy=True)
        self._pages = torch.zeros(max_rows * width, dtype=torch.int32, device=device)
        self._table_NM = torch.zeros(max_rows, width, dtype=torch.int32, device=device)
        self._table_NM[:, 0] = self._padding_page_N
        self._rows_N = rows.to(device)
        self._stages = itertools.cycle(
            [
                _StagingBuffer(max_rows, width, pinned=device.type == "cuda")
                for _ in range(STAGING_BUFFERS if device.type == "cuda" else 1)
            ]
        )

    @staticmethod
    def padding_pages(max_rows: int, page_size: int) -> int:
        """Number of pages that padding of up to `max_rows` rows writes to."""
        return -(-max_rows // page_size)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors that `view` cuts."""
        return [self._numbers_LN, self._table_NM, self._rows_N]

    def view(self, size: int) -> StepInputs:
        """The first `size` rows, which are always the same memory."""
        numbers = self._numbers_LN
        ragged = Ragged(self._table_NM[:size], numbers[_CONTEXTS, :size], [1] * size)
        return StepInputs(
            numbers[_IDS : _IDS + 1, :size],
            numbers[_POSITIONS : _POSITIONS + 1, :size],
            AttentionBatch(numbers[_SLOTS, :size], ragged),
            self._rows_N[:size],
            size,
        )

    def write(self, batch: Batch, size: int) -> None:
        """Write a decode step's chunks to the first rows, and padding to the others of `size` rows."""
        chunks, pending = batch.chunks, batch.pending
        stage = next(self._stages)
        stage.wait()
        used = max(chunk.start // self.page_size + 1 for chunk in chunks)
        numbers, pages = stage.numbers.numpy(), stage.pages[: size * used]
        numbers[:] = self._padding_LN.numpy()
        table = pages.view(size, used).numpy()
        table[:, 1:] = 0
        table[:, 0] = self._padding_page_N[:size].numpy()
        for row, chunk in enumerate(chunks):
            request, position = chunk.request, chunk.start
            page = position // self.page_size
            numbers[:, row] = (
                request.token_ids[position],
                position,
                request.pages[page] * self.page_size + position % self.page_size,
                position + 1,
                pending.rows[request] if pending is not None and request.token_ids[position] == PENDING else -1,
            )
            table[row, : page + 1] = request.pages[: page + 1]
        self._numbers_LN.copy_(stage.numbers, non_blocking=True)
        if pending is not None:
            ids_N, source_N = self._numbers_LN[_IDS], self._numbers_LN[_SOURCES]
            ids_N.copy_(torch.where(source_N < 0, ids_N, pending.tokens_R[source_N.clamp_min(0)]))
        flat = self._pages[: size * used]
        flat.copy_(pages, non_blocking=True)
        stage.mark()
        # Further columns may name pages of earlier steps: nothing behind a sequence's context is read.
        self._table_NM[:size, :used] = flat.view(size, used)
