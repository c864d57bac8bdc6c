"""Whisper's decoder over many sequences at once: caches of self- and cross-attention, one pass for all rows.

Sequences in flight are the first rows of every cache, so that a step reads views and copies nothing; a row that is
removed is replaced by the last one. Keys and values of cross-attention are computed once, when a window begins. The
modules are Transformers', in the order of `WhisperDecoder.forward`. Knows nothing about the meaning of tokens, windows
or requests.

Shapes: R rows in flight, N rows of a pass, T tokens, S positions cached, F encoder frames, L layers, H heads, D per
head, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

GROWTH = 64
"""Positions by which the cache of self-attention grows at a time."""


class BatchedDecoder:
    """The decoder with its caches.

    Args:
        model: Transformers' `WhisperForConditionalGeneration`, in eval mode on its device.
        max_rows: sequences at once.
    """

    def __init__(self, model: Any, max_rows: int) -> None:
        decoder = model.model.decoder
        self._decoder = decoder
        self._project = model.proj_out
        self._max_rows = max_rows
        self._heads = int(model.config.decoder_attention_heads)
        self._positions = int(model.config.max_target_positions)
        self._device: torch.device = model.device
        self._dtype: torch.dtype = model.dtype
        self._head_size = int(model.config.d_model) // self._heads
        self._self_LRHSD: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._cross_LRHFD: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._length = 0
        self.rows = 0
        """Number of rows in flight."""

    def add(self, encoded_NFC: torch.Tensor) -> None:
        """Append rows for windows with these encoder states."""
        count, frames = encoded_NFC.shape[0], encoded_NFC.shape[1]
        assert self.rows + count <= self._max_rows
        self._make_room(self.rows + count, frames)
        for layer, (keys, values) in zip(self._decoder.layers, self._cross_LRHFD, strict=True):
            attention = layer.encoder_attn
            keys[self.rows : self.rows + count] = self._split(attention.k_proj(encoded_NFC))
            values[self.rows : self.rows + count] = self._split(attention.v_proj(encoded_NFC))
        self.rows += count

    def remove(self, row: int) -> int:
        """Remove a row; the last row takes its place. Returns the index that the last row had."""
        last = self.rows - 1
        if row != last:
            for keys, values in [*self._self_LRHSD, *self._cross_LRHFD]:
                keys[row] = keys[last]
                values[row] = values[last]
        self.rows = last
        return last

    def forward(
        self,
        tokens_NT: torch.Tensor,
        starts_N: torch.Tensor,
        *,
        first: int,
        heads: list[tuple[int, int]] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pass tokens through the decoder and cache their keys and values.

        Args:
            tokens_NT: tokens of rows `first` to `first + N`; padding at the end of a row is overwritten by its next
                tokens.
            starts_N: position of the first token of each row, which is the number of its cached tokens.
            first: index of the first row.
            heads: (layer, head) pairs whose attention over the encoder's frames is wanted.

        Returns:
            Hidden states [N, T, C] after the last norm, and attention [N, heads, T, F] (empty without `heads`).
        """
        count, length = tokens_NT.shape
        positions_NT = starts_N[:, None] + torch.arange(length, device=self._device)
        end = int(positions_NT.max()) + 1
        self._lengthen(end)
        rows_N1 = torch.arange(first, first + count, device=self._device)[:, None]
        # Padding may run past the last position of the model.
        places_NT = positions_NT.clamp(max=self._positions - 1)
        hidden = self._decoder.embed_tokens(tokens_NT) + self._decoder.embed_positions.weight[places_NT]
        end = min(end, self._positions)
        mask_N1TS = (torch.arange(end, device=self._device) <= positions_NT[:, :, None])[:, None]
        attention_weights: list[torch.Tensor] = []
        wanted = heads or []
        for number, layer in enumerate(self._decoder.layers):
            keys, values = self._self_LRHSD[number]
            attention = layer.self_attn
            normed = layer.self_attn_layer_norm(hidden)
            keys[rows_N1, :, places_NT] = self._split(attention.k_proj(normed)).transpose(1, 2)
            values[rows_N1, :, places_NT] = self._split(attention.v_proj(normed)).transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(
                self._query(attention, normed),
                keys[first : first + count, :, :end],
                values[first : first + count, :, :end],
                attn_mask=mask_N1TS,
                scale=1.0,
            )
            hidden = hidden + attention.out_proj(mixed.transpose(1, 2).flatten(2))
            keys, values = (cache[first : first + count] for cache in self._cross_LRHFD[number])
            attention = layer.encoder_attn
            query = self._query(attention, layer.encoder_attn_layer_norm(hidden))
            mixed = functional.scaled_dot_product_attention(query, keys, values, scale=1.0)
            chosen = [head for at, head in wanted if at == number]
            if chosen:
                attention_weights.append((query[:, chosen] @ keys[:, chosen].transpose(-1, -2)).softmax(-1))
            hidden = hidden + attention.out_proj(mixed.transpose(1, 2).flatten(2))
            hidden = hidden + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden))))
        joined = torch.cat(attention_weights, dim=1) if attention_weights else hidden.new_zeros((count, 0, length, 0))
        return self._decoder.layer_norm(hidden), joined

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] in float32, of hidden states [..., C]."""
        logits: torch.Tensor = self._project(hidden).float()
        return logits

    def _query(self, attention: Any, hidden: torch.Tensor) -> torch.Tensor:
        return self._split(attention.q_proj(hidden) * attention.scaling)

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.view(*projected.shape[:2], self._heads, self._head_size).transpose(1, 2)

    def _make_room(self, rows: int, frames: int) -> None:
        """Grow both caches to at least `rows` rows, by doubling."""
        have = self._cross_LRHFD[0][0].shape[0] if self._cross_LRHFD else 0
        if rows > have:
            size = min(self._max_rows, max(rows, 2 * have))
            self._cross_LRHFD = self._grown(self._cross_LRHFD, size, frames)
            self._length = max(self._length, GROWTH)
            self._self_LRHSD = self._grown(self._self_LRHSD, size, self._length)

    def _lengthen(self, end: int) -> None:
        """Grow the cache of self-attention to at least `end` positions, if the model has as many."""
        if end > self._length < self._positions:
            self._length = min(-(-end // GROWTH) * GROWTH, self._positions)
            self._self_LRHSD = self._grown(self._self_LRHSD, self._self_LRHSD[0][0].shape[0], self._length)

    def _grown(
        self, caches: list[tuple[torch.Tensor, torch.Tensor]], rows: int, length: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (rows, self._heads, length, self._head_size)
        grown = []
        for number in range(len(self._decoder.layers)):
            pair = tuple(torch.zeros(shape, device=self._device, dtype=self._dtype) for _ in range(2))
            if caches:
                for new, old in zip(pair, caches[number], strict=True):
                    new[: self.rows, :, : old.shape[2]] = old[: self.rows]
            grown.append((pair[0], pair[1]))
        return grown
