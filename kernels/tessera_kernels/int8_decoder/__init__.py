"""A step of a decoder with 8-bit weights on a CPU: all layers in one compiled call instead of some thousand small ones.

The arithmetic is that of `int8_linear` (with activation scales for groups of inputs where a layer has them), `rms_norm`
and `paged_attention`; a row's result has the same bits whatever other rows are in its step. Needs a processor with
AVX-512 VNNI. Knows no models: the caller describes the layers. `kernels/README.md` has the memory layout and an order
in which to read the files.

Shape letters: T tokens, C features, V vocabulary, R rows that get logits, L layers, P pages, S slots of a page, H
key-value heads, D head dim, Q query heads, B sequences, U row blocks of attention, X threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tessera_kernels.cpu import instructions
from tessera_kernels.cpu.team import Team
from tessera_kernels.int8_decoder import gemm, step
from tessera_kernels.int8_decoder.layout import Arenas, DecoderLayer, DecoderLinear, LayerField, LinearField, fits
from tessera_kernels.paged_attention import Ragged
from tessera_kernels.storage.paged_kv import PagedKV

__all__ = ["Activation", "Decoder", "DecoderConfig", "DecoderLayer", "DecoderLinear", "unsupported_reason"]

ATTENTION_ROWS = 6
"""Rows of a sequence whose attention is computed at once."""
L1_WAY_FLOATS = 1024
"""float32 elements (4 KiB) after which addresses map to the same set of a first-level cache."""
Activation = Literal["silu", "gelu_tanh"]
_ACTIVATIONS = {"silu": step.SILU, "gelu_tanh": step.GELU}


@dataclass(frozen=True)
class DecoderConfig:
    """What all layers of a decoder have in common.

    Attributes:
        features: width of the hidden states.
        heads: query heads.
        kv_heads: key-value heads; `heads` is a multiple of it.
        head_dim: elements of a head, a multiple of 16.
        activation: activation of the gate in the MLP.
        epsilon: added to the mean square in the norms.
        scaling: factor on the scores of attention.
    """

    features: int
    heads: int
    kv_heads: int
    head_dim: int
    activation: Activation
    epsilon: float
    scaling: float


def unsupported_reason(
    config: DecoderConfig, layers: Sequence[DecoderLayer], head: DecoderLinear, caches: Sequence[PagedKV]
) -> str:
    """Why `Decoder` cannot run a decoder on this machine; empty when it can.

    Args:
        config: what all layers have in common.
        layers: in order.
        head: the projection to logits.
        caches: keys and values of each layer, as `PagedKV.stacked` makes them.
    """
    if not instructions.available():
        return "the processor has no AVX-512 VNNI, or Numba is not installed"
    if config.head_dim % instructions.LANES:
        return f"heads of {config.head_dim} elements: not a multiple of {instructions.LANES}"
    linears = [one for layer in layers for one in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    if not all(fits(linear) for linear in [*linears, head]):
        return (
            f"a layer whose sizes are not multiples of {instructions.LANES}, or with weights that float16 cannot hold"
        )
    if len({tensor.shape for cache in caches for tensor in (cache.key_PSHD, cache.value_PSHE)}) != 1:
        return "layers have caches of different shapes"
    if caches[0].key_PSHD.shape[1] % instructions.LANES:
        return f"pages of {caches[0].key_PSHD.shape[1]} slots: not a multiple of {instructions.LANES}"
    if caches[0].key_PSHD.dtype not in {torch.float32, torch.float16, torch.int8}:
        return f"keys are stored as {caches[0].key_PSHD.dtype}"
    if not all(_is_behind(before, after) for before, after in itertools.pairwise(caches)):
        return "the layers' caches do not lie one behind another"
    return ""


class Decoder:
    """Layers, final norm and head with packed weights, ready to run. Not for concurrent calls.

    Args:
        config: what all layers have in common.
        layers: in order; their weights are copied.
        final_norm_C: weight of the final norm, float32 [features].
        head: the projection to logits.
        caches: keys and values of each layer, views of one tensor, as `PagedKV.stacked` makes them. The decoder stores
            keys in an order of its own (`attention`): other code may move whole pages, but not read their keys.

    Raises:
        ValueError: the decoder cannot run here, for the reason that `unsupported_reason` gives.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layers: Sequence[DecoderLayer],
        final_norm_C: torch.Tensor,
        head: DecoderLinear,
        caches: Sequence[PagedKV],
    ) -> None:
        if reason := unsupported_reason(config, layers, head, caches):
            raise ValueError(reason)
        self.config = config
        self._arenas = Arenas(layers, final_norm_C, head)
        self._team = Team()
        table = self._arenas.table
        linears = [
            table[:-1, begin : begin + len(LinearField)]
            for begin in (LayerField.QKV, LayerField.OUT, LayerField.GATE_UP, LayerField.DOWN)
        ]
        linears.append(table[-1:, LayerField.QKV : LayerField.QKV + len(LinearField)])
        self._max_inputs = int(max(one[:, LinearField.INPUTS].max() for one in linears))
        self._max_outputs = int(max(one[:, LinearField.OUTPUTS].max() for one in linears[:-1]))
        self._max_groups = int(
            max((-(-one[:, LinearField.INPUTS] // one[:, LinearField.GROUP])).max() for one in linears)
        )
        grouped_outputs = [
            one[one[:, LinearField.GROUP] < one[:, LinearField.INPUTS], LinearField.OUTPUTS].max(initial=0)
            for one in linears
        ]
        # Columns of the scratch for sums; layers without groups need room for one pair of blocks.
        self._sum_columns = max(int(max(grouped_outputs)), gemm.PAIR_BLOCKS * instructions.LANES)
        self._max_outliers = int(max(one[:, LinearField.OUTLIERS].max() for one in linears))
        self._vocabulary = int(table[-1, LayerField.QKV + LinearField.OUTPUTS])
        stacked = [_stack(tensors) for tensors in zip(*(cache.tensors for cache in caches), strict=True)]
        count, pages, size, heads, dim = stacked[0].shape
        # The same memory with its elements in another order: see `attention`.
        keys = stacked[0].reshape(count, pages, heads, size // instructions.LANES, dim, instructions.LANES)
        scales = [one.reshape(count, pages, heads, size) for one in stacked[2:]]
        self._stacked = (keys, stacked[1], *(scales or [np.zeros((count, 0, 0, 0), np.float32)] * 2))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, norms and tables."""
        return self._arenas.nbytes

    def run(
        self,
        x_TC: torch.Tensor,
        rotary_TD: tuple[torch.Tensor, torch.Tensor],
        slots_T: torch.Tensor,
        ragged: Ragged,
        rows_R: torch.Tensor,
        *,
        threads: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run one step; it writes the tokens' keys and values to the cache.

        Args:
            x_TC: float32 embeddings of the tokens; replaced by the last layer's output, before the final norm.
            rotary_TD: cosines and sines of each token's position, float32 [T, D] each.
            slots_T: int64, the slot of the cache that each token's key and value are written to.
            ragged: which tokens and pages belong to which sequence, as for `paged_attention`.
            rows_R: int64, indices of the tokens whose logits are wanted.
            threads: threads to run on, the calling one included.

        Returns:
            Logits, float32 [R, V]; the token with the largest logit of each row, int64 [R], the first of equal ones;
            and that logit, float32 [R], which is NaN if any logit of the row is NaN.
        """
        tokens, config = len(x_TC), self.config
        counts = np.array(ragged.query_counts)
        sequence_T = np.repeat(np.arange(len(counts)), counts)
        behind_T = counts.cumsum()[sequence_T] - 1 - np.arange(tokens)  # rows of the same sequence after this one
        context_T = ragged.context_B.numpy()[sequence_T] - behind_T
        # First rows of the row blocks for attention: each sequence begins a new block.
        block_U = np.array(
            [
                at
                for end, count in zip(counts.cumsum(), counts, strict=True)
                for at in range(end - count, end, ATTENTION_ROWS)
            ]
            + [tokens]
        )
        longest = int(context_T.max(initial=1))
        scores = -(-longest // instructions.LANES) * instructions.LANES
        queries = max(config.heads, min(ATTENTION_ROWS, tokens) * config.heads // config.kv_heads)
        logits_RV = torch.empty(len(rows_R), _padded(self._vocabulary))
        most_rows = max(tokens, len(rows_R))
        place_XR, largest_XR = np.empty((threads, len(rows_R)), np.int64), np.empty((threads, len(rows_R)), np.float32)
        arguments = (
            (self._arenas.packed_weights, self._arenas.floats, self._arenas.ints),
            self._arenas.table,
            (
                config.features,
                config.heads,
                config.kv_heads,
                config.head_dim,
                _ACTIVATIONS[config.activation],
                np.float32(config.epsilon),
                np.float32(config.scaling),
            ),
            x_TC.numpy(),
            (rotary_TD[0].numpy(), rotary_TD[1].numpy()),
            slots_T.numpy(),
            self._stacked,
            (ragged.page_table_BM.numpy(), sequence_T, context_T, block_U),
            (
                # Made by torch, which aligns memory to cache lines, as stores of whole vectors should be.
                torch.empty(most_rows, self._max_inputs, dtype=torch.uint8).numpy(),
                torch.empty(self._max_groups, most_rows).numpy(),
                torch.empty(most_rows, self._max_outliers).numpy(),
                torch.empty(threads, min(most_rows, gemm.TILE_ROWS) * self._sum_columns).numpy(),
                torch.empty(tokens, _padded(self._max_outputs)).numpy(),
                torch.empty(tokens, _padded(config.heads * config.head_dim)).numpy(),
                (
                    torch.empty(threads, queries, scores).numpy(),
                    torch.empty(threads, _padded(queries + 1)).numpy(),
                    *(torch.empty(threads, queries, config.head_dim).numpy() for _ in range(2)),
                ),
            ),
            (rows_R.numpy(), logits_RV.numpy(), place_XR, largest_XR),
        )
        self._team.run(step.decoder_step, threads, *arguments)
        # The first of equal logits is the first thread's, which has the lower tokens; NumPy's argmax prefers NaN.
        best_R, every_R = largest_XR.argmax(axis=0), np.arange(len(rows_R))
        token_R, largest_R = place_XR[best_R, every_R], largest_XR[best_R, every_R]
        return logits_RV[:, : self._vocabulary], torch.from_numpy(token_R), torch.from_numpy(largest_R)


def _padded(width: int) -> int:
    """Row stride, in float32 elements, of rows of `width`: not a multiple of `L1_WAY_FLOATS`.

    Rows at such a stride would compete for the few lines of one cache set.
    """
    return width + instructions.LANES * (2 if (width + instructions.LANES) % L1_WAY_FLOATS == 0 else 1)


def _is_behind(before: PagedKV, after: PagedKV) -> bool:
    """Whether each tensor of a cache begins where the same tensor of the cache before ends."""
    return all(
        left.data_ptr() + left.nbytes == right.data_ptr()
        for left, right in zip(before.tensors, after.tensors, strict=True)
    )


def _stack(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """One array [layers, …] over views that lie one behind another; float16 as int16, as Numba has no float16."""
    first = tensors[0]
    stacked = first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()), first.storage_offset())
    array: np.ndarray = stacked.view(torch.int16 if stacked.dtype == torch.float16 else stacked.dtype).numpy()
    return array
