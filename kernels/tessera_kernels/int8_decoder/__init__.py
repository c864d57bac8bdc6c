"""A step of a decoder with 8-bit weights on a CPU: all layers in one compiled call instead of some thousand small ones.

The arithmetic is `int8_linear`'s (with steps for groups of inputs where a layer asks for them), `rms_norm`'s and
`paged_attention`'s; a row's result is the same bits whatever shares its step. Does not know models: who calls says what
the layers are. Needs a processor with AVX-512 VNNI.

Shape letters: T tokens, C features, V vocabulary, R rows that get logits, L layers, P pages, S slots of a page, H
key-value heads, D head dim, Q query heads.
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

ROWS = 6
"""Of a sequence that are attended to at once."""
PAGE_SINGLES = 1024
"""float32 numbers after which a first-level cache begins again."""
Activation = Literal["silu", "gelu_tanh"]
_ACTIVATIONS = {"silu": step.SILU, "gelu_tanh": step.GELU}


@dataclass(frozen=True)
class DecoderConfig:
    """What is the same in all layers.

    Attributes:
        features, heads, kv_heads, head_dim: of the decoder.
        activation: of the gate.
        epsilon: of the norms.
        scaling: factor on attention's scores.
    """

    features: int
    heads: int
    kv_heads: int
    head_dim: int
    activation: Activation
    epsilon: float
    scaling: float


def unsupported_reason(
    sizes: DecoderConfig, layers: Sequence[DecoderLayer], head: DecoderLinear, caches: Sequence[PagedKV]
) -> str:
    """What keeps a decoder from being run here; empty when nothing does."""
    if not instructions.available():
        return "the processor has no AVX-512 VNNI, or Numba is not installed"
    if sizes.head_dim % instructions.LANES:
        return f"heads of {sizes.head_dim} numbers: not a multiple of {instructions.LANES}"
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
    """Layers, final norm and head, ready to run.

    Args:
        sizes: of the layers.
        layers: in order.
        final_norm_C: float32.
        head: gives logits.
        caches: of the layers, views of one tensor: see `PagedKV.stacked`.

    Raises:
        ValueError: `unsupported_reason` says why.
    """

    def __init__(
        self,
        sizes: DecoderConfig,
        layers: Sequence[DecoderLayer],
        final_norm_C: torch.Tensor,
        head: DecoderLinear,
        caches: Sequence[PagedKV],
    ) -> None:
        if reason := unsupported_reason(sizes, layers, head, caches):
            raise ValueError(reason)
        self.sizes = sizes
        self._arenas = Arenas(layers, final_norm_C, head)
        self._team = Team()
        table = self._arenas.table
        linears = [
            table[:-1, part : part + len(LinearField)]
            for part in (LayerField.QKV, LayerField.OUT, LayerField.GATE_UP, LayerField.DOWN)
        ]
        linears.append(table[-1:, LayerField.QKV : LayerField.QKV + len(LinearField)])
        self._widest_in = int(max(one[:, LinearField.INPUTS].max() for one in linears))
        self._widest_out = int(max(one[:, LinearField.OUTPUTS].max() for one in linears[:-1]))
        self._most_groups = int(
            max((-(-one[:, LinearField.INPUTS] // one[:, LinearField.GROUP])).max() for one in linears)
        )
        gathered = [
            one[one[:, LinearField.GROUP] < one[:, LinearField.INPUTS], LinearField.OUTPUTS].max(initial=0)
            for one in linears
        ]
        # Two blocks of columns at least, of which one is left over.
        self._widest_gathered = max(int(max(gathered)), gemm.PAIR * instructions.LANES)
        self._in_float = int(max(one[:, LinearField.OUTLIERS].max() for one in linears))
        self._vocabulary = int(table[-1, LayerField.QKV + LinearField.OUTPUTS])
        stacked = [_stack(tensors) for tensors in zip(*(cache.tensors for cache in caches), strict=True)]
        number, pages, size, heads, dim = stacked[0].shape
        # The same memory in another order: see `attend`.
        keys = stacked[0].reshape(number, pages, heads, size // instructions.LANES, dim, instructions.LANES)
        scales = [one.reshape(number, pages, heads, size) for one in stacked[2:]]
        self._stacked = (keys, stacked[1], *(scales or [np.zeros((number, 0, 0, 0), np.float32)] * 2))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
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
        """One step; the tokens' keys and values are in the cache afterwards.

        Args:
            x_TC: float32, the tokens' embeddings; the last layer's output (before the final norm) when it returns.
            rotary_TD: cosines and sines of each token's position, float32.
            slots_T: int64, where in the cache a token's key and value go.
            ragged: as `paged_attention` takes it.
            rows_R: int64, tokens whose logits are wanted.
            threads: to run on.

        Returns:
            Logits [R, V], float32; of each row the token of the largest one, the first of equal ones, int64; and that
            logit, NaN where one of the row is none.
        """
        tokens, sizes = len(x_TC), self.sizes
        counts = np.array(ragged.query_counts)
        sequence_T = np.repeat(np.arange(len(counts)), counts)
        behind_T = counts.cumsum()[sequence_T] - 1 - np.arange(tokens)  # rows of the same sequence after this one
        context_T = ragged.context_B.numpy()[sequence_T] - behind_T
        # Rows of a sequence are attended to in blocks; each sequence begins a new one.
        block_U = np.array(
            [at for end, count in zip(counts.cumsum(), counts, strict=True) for at in range(end - count, end, ROWS)]
            + [tokens]
        )
        most_seen = int(context_T.max(initial=1))
        scores = -(-most_seen // instructions.LANES) * instructions.LANES
        at_once = max(sizes.heads, min(ROWS, tokens) * sizes.heads // sizes.kv_heads)
        logits_RV = torch.empty(len(rows_R), _apart(self._vocabulary))
        height = max(tokens, len(rows_R))
        place_XR, largest_XR = np.empty((threads, len(rows_R)), np.int64), np.empty((threads, len(rows_R)), np.float32)
        arguments = (
            (self._arenas.bytes_, self._arenas.floats, self._arenas.ints),
            self._arenas.table,
            (
                sizes.features,
                sizes.heads,
                sizes.kv_heads,
                sizes.head_dim,
                _ACTIVATIONS[sizes.activation],
                np.float32(sizes.epsilon),
                np.float32(sizes.scaling),
            ),
            x_TC.numpy(),
            (rotary_TD[0].numpy(), rotary_TD[1].numpy()),
            slots_T.numpy(),
            self._stacked,
            (ragged.page_table_BM.numpy(), sequence_T, context_T, block_U),
            (
                # torch's memory begins with a line of the cache, as what is written sixteen numbers at a time should.
                torch.empty(height, self._widest_in, dtype=torch.uint8).numpy(),
                torch.empty(self._most_groups, height).numpy(),
                torch.empty(height, self._in_float).numpy(),
                torch.empty(threads, min(height, gemm.MOST_ROWS) * self._widest_gathered).numpy(),
                torch.empty(tokens, _apart(self._widest_out)).numpy(),
                torch.empty(tokens, _apart(sizes.heads * sizes.head_dim)).numpy(),
                (
                    torch.empty(threads, at_once, scores).numpy(),
                    torch.empty(threads, _apart(at_once + 1)).numpy(),
                    *(torch.empty(threads, at_once, sizes.head_dim).numpy() for _ in range(2)),
                ),
            ),
            (rows_R.numpy(), logits_RV.numpy(), place_XR, largest_XR),
        )
        self._team.run(step.decoder_step, threads, *arguments)
        # Of equal ones the first thread's, whose tokens come first; of what is no number, that.
        best_R, every_R = largest_XR.argmax(axis=0), np.arange(len(rows_R))
        token_R, largest_R = place_XR[best_R, every_R], largest_XR[best_R, every_R]
        return logits_RV[:, : self._vocabulary], torch.from_numpy(token_R), torch.from_numpy(largest_R)


def _apart(width: int) -> int:
    """Numbers from a row to the next, so that rows do not share the few places that a cache has for one column."""
    return width + instructions.LANES * (2 if (width + instructions.LANES) % PAGE_SINGLES == 0 else 1)


def _is_behind(before: PagedKV, after: PagedKV) -> bool:
    return all(
        left.data_ptr() + left.nbytes == right.data_ptr()
        for left, right in zip(before.tensors, after.tensors, strict=True)
    )


def _stack(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """Views that lie one behind another as one array with a first dimension more."""
    first = tensors[0]
    whole = first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()), first.storage_offset())
    # Compiled code knows no float16.
    made: np.ndarray = whole.view(torch.int16 if whole.dtype == torch.float16 else whole.dtype).numpy()
    return made
