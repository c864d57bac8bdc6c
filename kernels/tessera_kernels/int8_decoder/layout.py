"""A decoder's weights in three arenas and a table of where each is: what compiled code can walk without Python.

Int8 weights are packed for the processor's dot products: by 16 outputs, in those by four inputs; and whatever else is
read of these outputs lies behind them, so that memory is read in one stream. A decoder here is a row of equal layers:
norm, fused query-key-value product, rotary embedding, attention, product, norm, gated MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessera_kernels.cpu import huge_pages
from tessera_kernels.cpu.instructions import LANES
from tessera_kernels.int8_linear import Int8Weight

Ints = npt.NDArray[np.int64]


class LinearField(IntEnum):
    """Columns of a linear layer in the table: sizes, and offsets into the arenas."""

    WEIGHT = 0
    OUTPUTS = 1
    INPUTS = 2
    GROUP = 3
    EPILOGUE = 4
    OUTLIER_COLUMNS = 5
    OUTLIERS = 6
    SMOOTHING = 7


class LayerField(IntEnum):
    """Columns of a layer in the table: where the fields of its linear layers begin, then offsets of its norms."""

    QKV = 0
    OUT = 8
    GATE_UP = 16
    DOWN = 24
    NORM = 32
    MLP_NORM = 33
    QUERY_NORM = 34
    KEY_NORM = 35
    WINDOW = 36


WIDTH = 37
NOTHING = -1


@dataclass(frozen=True)
class DecoderLinear:
    """A layer in 8 bits.

    Attributes:
        weight: of it.
        bias_N: [outputs], if it has one.
        group: inputs of a row that share a step, a multiple of 16; None: all do. Where a few are much larger than the
            others, these lose less so.
    """

    weight: Int8Weight
    bias_N: torch.Tensor | None
    group: int | None = None


@dataclass(frozen=True)
class DecoderLayer:
    """A decoder layer. Norms are float32 [features], ready to be multiplied with; those of heads may be None.

    Attributes:
        norm_C, mlp_norm_C: before attention and before the MLP.
        query_norm_D, key_norm_D: of each head (Qwen3).
        qkv, out, gate_up, down: the linear layers; fused ones have the outputs of the first, then of the second …
        window: positions that a row sees, its own included; None sees all.
    """

    norm_C: torch.Tensor
    qkv: DecoderLinear
    query_norm_D: torch.Tensor | None
    key_norm_D: torch.Tensor | None
    out: DecoderLinear
    mlp_norm_C: torch.Tensor
    gate_up: DecoderLinear
    down: DecoderLinear
    window: int | None


class Arenas:
    """Weights of layers and head one behind another.

    Attributes:
        bytes_: int8, packed weights.
        floats: float32. ints: int32.
        table: int64 [layers + 1, WIDTH]; the last row has the final norm as `LayerField.NORM` and
            the head as `LayerField.QKV`.
    """

    def __init__(self, layers: Sequence[DecoderLayer], final_norm_C: torch.Tensor, head: DecoderLinear) -> None:
        self._bytes: list[npt.NDArray[np.int8]] = []
        self._floats: list[npt.NDArray[np.float32]] = []
        self._ints: list[npt.NDArray[np.int32]] = []
        self._used = [0, 0, 0]
        self.table: Ints = np.full((len(layers) + 1, WIDTH), NOTHING, dtype=np.int64)
        for row, layer in zip(self.table, layers, strict=False):
            for part, linear in (
                (LayerField.QKV, layer.qkv),
                (LayerField.OUT, layer.out),
                (LayerField.GATE_UP, layer.gate_up),
                (LayerField.DOWN, layer.down),
            ):
                self._add_linear(row[part : part + len(LinearField)], linear)
            for part, norm in (
                (LayerField.NORM, layer.norm_C),
                (LayerField.MLP_NORM, layer.mlp_norm_C),
                (LayerField.QUERY_NORM, layer.query_norm_D),
                (LayerField.KEY_NORM, layer.key_norm_D),
            ):
                row[part] = NOTHING if norm is None else self._add_floats(norm)
            row[LayerField.WINDOW] = layer.window or 0
        self._add_linear(self.table[-1, LayerField.QKV : LayerField.QKV + len(LinearField)], head)
        self.table[-1, LayerField.NORM] = self._add_floats(final_norm_C)
        self.bytes_ = _joined(self._bytes, np.int8)
        self.floats = _joined(self._floats, np.float32)
        self.ints = _joined(self._ints, np.int32)
        self._bytes, self._floats, self._ints = [], [], []

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return int(self.bytes_.nbytes + self.floats.nbytes + self.ints.nbytes + self.table.nbytes)

    def _add_linear(self, row: Ints, linear: DecoderLinear) -> None:
        weight = linear.weight
        inputs, outputs = weight.weight_KN.shape
        columns = weight.outlier_columns_M.numpy()
        row[LinearField.OUTPUTS], row[LinearField.INPUTS], row[LinearField.OUTLIERS] = outputs, inputs, len(columns)
        row[LinearField.GROUP] = group = linear.group or inputs
        bias_N = torch.zeros(outputs) if linear.bias_N is None else linear.bias_N.detach().float()
        weight_NK, outlier_weight_MN = (
            weight.weight_KN.t().contiguous().numpy(),
            weight.outlier_weight_MN.float().numpy(),
        )
        records, rest = packed(weight_NK, group, weight.scale_N.float().numpy(), bias_N.numpy(), outlier_weight_MN)
        row[LinearField.WEIGHT] = self._put(0, self._bytes, records)
        row[LinearField.EPILOGUE] = row[LinearField.WEIGHT] + rest
        row[LinearField.OUTLIER_COLUMNS] = self._put(2, self._ints, columns.astype(np.int32))
        row[LinearField.SMOOTHING] = self._add_floats(weight.smoothing_K)

    def _add_floats(self, values: torch.Tensor) -> int:
        return self._put(1, self._floats, values.detach().float().contiguous().view(-1).numpy())

    def _put(self, arena: int, parts: list[Any], values: npt.NDArray[Any]) -> int:
        place = self._used[arena]
        parts.append(values)
        self._used[arena] += values.size
        return place


def packed(
    weight_NK: npt.NDArray[np.int8],
    group: int,
    scale_N: npt.NDArray[np.float32],
    bias_N: npt.NDArray[np.float32],
    outlier_weight_MN: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], int]:
    """A linear layer as records of sixteen outputs, one behind the other; and where in the first one its rest begins.

    A record has the weights [inputs / 4, 16, 4]; what sums of products exceed by, int32 [16]: inputs are unsigned for
    the processor, 128 too large, so that much of each sum is the weights' own; and the rest: scales and bias, float32
    [16] each, and the weights that are multiplied in float, as float16 [M, 16].
    Inputs that come in several groups have records of the first two, all of one group and then all of the next one; the
    rests are behind all of them.
    """
    outputs, inputs = weight_NK.shape
    blocks = outputs // LANES
    halves_MN = outlier_weight_MN.astype(np.float16).reshape(-1, blocks, LANES).swapaxes(0, 1)
    rest = np.concatenate([_bytes(one, blocks) for one in (scale_N, bias_N, halves_MN)], axis=1)
    records = []
    for at in range(0, inputs, group):
        some_NK = weight_NK[:, at : at + group]
        quads = some_NK.reshape(blocks, LANES, -1, 4).swapaxes(1, 2)
        excess_N = 128 * some_NK.sum(axis=1, dtype=np.int32)
        records.append(np.concatenate([_bytes(quads, blocks), _bytes(excess_N, blocks)], axis=1))
    if len(records) == 1:
        return np.concatenate([records[0], rest], axis=1).reshape(-1), records[0].shape[1]
    return np.concatenate([one.reshape(-1) for one in (*records, rest)]), sum(record.size for record in records)


def _bytes(values: npt.NDArray[Any], blocks: int) -> npt.NDArray[np.int8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.int8).reshape(blocks, -1)


def fits(linear: DecoderLinear) -> bool:
    """Whether a layer's sizes are multiples of what the processor takes at once, and its floats are float16's."""
    inputs, outputs = linear.weight.weight_KN.shape
    whole = all(size % LANES == 0 for size in (inputs, outputs, linear.group or inputs))
    floats = linear.weight.outlier_weight_MN
    held = floats.numel() == 0 or bool(floats.abs().max() <= torch.finfo(torch.float16).max)
    return whole and held and len(linear.weight.outlier_columns_M) % 2 == 0


def _joined(parts: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # torch's memory begins at a multiple of 64 bytes, as the processor likes it.
    empty = torch.empty(sum(part.size for part in parts), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype)
    whole = huge_pages.advise(empty).numpy()
    return np.concatenate(parts, out=whole) if parts else whole
