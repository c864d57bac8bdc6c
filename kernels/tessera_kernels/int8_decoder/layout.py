"""A decoder's weights in three arenas and a table of offsets, which compiled code walks without Python objects.

Weights of 16 output columns are packed for `vpdpbusd`, and whatever else is read for these columns lies behind them, so
that memory is read in one stream (`packed`; drawn in `kernels/README.md`). A decoder here is a sequence of equal
layers: norm, fused query-key-value projection, rotary embedding, attention, output projection, norm, gated MLP.

Shape letters: N outputs, K inputs, M outlier inputs, C features, D head dim.
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
from tessera_kernels.int8_linear.weight import Int8Weight

Int64Array = npt.NDArray[np.int64]


class LinearField(IntEnum):
    """Columns of the table for one linear layer: sizes, and offsets into the arenas in elements.

    `WEIGHT`: offset of the packed weights in the byte arena. `OUTPUTS`, `INPUTS`: sizes. `GROUP`: inputs that share an
    activation scale. `EPILOGUE`: offset of the first block's epilogue data in the byte arena. `OUTLIER_COLUMNS`: offset
    in the int32 arena; `OUTLIERS`: how many there are. `SMOOTHING`: offset of the inputs' factors in the float arena.
    """

    WEIGHT = 0
    OUTPUTS = 1
    INPUTS = 2
    GROUP = 3
    EPILOGUE = 4
    OUTLIER_COLUMNS = 5
    OUTLIERS = 6
    SMOOTHING = 7


class LayerField(IntEnum):
    """Columns of the table for a decoder layer.

    `QKV`, `OUT`, `GATE_UP` and `DOWN` are where the `LinearField`s of the four linear layers begin; then come offsets
    of the norms in the float arena (`ABSENT` without the norm), and the attention window in positions (0: none).
    """

    QKV = 0
    OUT = 8
    GATE_UP = 16
    DOWN = 24
    NORM = 32
    MLP_NORM = 33
    QUERY_NORM = 34
    KEY_NORM = 35
    WINDOW = 36


TABLE_WIDTH = 37
"""Columns of the table."""
ABSENT = -1
"""Offset of a norm that a layer does not have."""


@dataclass(frozen=True)
class DecoderLinear:
    """A linear layer of a decoder in 8 bits.

    Attributes:
        weight: int8 weight with its scales and outlier columns.
        bias_N: [outputs], any float dtype; None without a bias.
        group: inputs of a row that share an activation scale, a multiple of 16; None: all inputs do. Groups keep the
            precision of small inputs where a few others are much larger.
    """

    weight: Int8Weight
    bias_N: torch.Tensor | None
    group: int | None = None


@dataclass(frozen=True)
class DecoderLayer:
    """A decoder layer.

    Attributes:
        norm_C: weight of the norm before attention, float32 [features]; normed values are multiplied with it as it is.
        qkv: fused projection; outputs are all query heads, then all key heads, then all value heads.
        query_norm_D: weight of the norm of each query head, float32 [head dim] (Qwen3); None without that norm.
        key_norm_D: the same for key heads.
        out: projection of attention's outputs.
        mlp_norm_C: weight of the norm before the MLP, float32 [features].
        gate_up: fused projection; outputs are those of the gate, then those of up.
        down: projection of the gated values.
        window: positions that a row sees at most, its own included; None: all.
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
    """All weights of the layers and the head, concatenated by dtype.

    Attributes:
        packed_weights: int8; per linear layer what `packed` returns.
        floats: float32; norms and smoothing factors.
        ints: int32; outlier columns.
        table: int64 [layers + 1, `TABLE_WIDTH`], a row for each layer by `LayerField`. The last row has the final norm
            at `LayerField.NORM` and the head at `LayerField.QKV`.
    """

    def __init__(self, layers: Sequence[DecoderLayer], final_norm_C: torch.Tensor, head: DecoderLinear) -> None:
        self._weight_arrays: list[npt.NDArray[np.int8]] = []
        self._float_arrays: list[npt.NDArray[np.float32]] = []
        self._int_arrays: list[npt.NDArray[np.int32]] = []
        self._used = [0, 0, 0]
        self.table: Int64Array = np.full((len(layers) + 1, TABLE_WIDTH), ABSENT, dtype=np.int64)
        for row, layer in zip(self.table, layers, strict=False):
            for begin, linear in (
                (LayerField.QKV, layer.qkv),
                (LayerField.OUT, layer.out),
                (LayerField.GATE_UP, layer.gate_up),
                (LayerField.DOWN, layer.down),
            ):
                self._add_linear(row[begin : begin + len(LinearField)], linear)
            for field, norm in (
                (LayerField.NORM, layer.norm_C),
                (LayerField.MLP_NORM, layer.mlp_norm_C),
                (LayerField.QUERY_NORM, layer.query_norm_D),
                (LayerField.KEY_NORM, layer.key_norm_D),
            ):
                row[field] = ABSENT if norm is None else self._add_floats(norm)
            row[LayerField.WINDOW] = layer.window or 0
        self._add_linear(self.table[-1, LayerField.QKV : LayerField.QKV + len(LinearField)], head)
        self.table[-1, LayerField.NORM] = self._add_floats(final_norm_C)
        self.packed_weights = _concatenated(self._weight_arrays, np.int8)
        self.floats = _concatenated(self._float_arrays, np.float32)
        self.ints = _concatenated(self._int_arrays, np.int32)
        self._weight_arrays, self._float_arrays, self._int_arrays = [], [], []

    @property
    def nbytes(self) -> int:
        """Bytes of the three arenas and the table."""
        return int(self.packed_weights.nbytes + self.floats.nbytes + self.ints.nbytes + self.table.nbytes)

    def _add_linear(self, row: Int64Array, linear: DecoderLinear) -> None:
        weight = linear.weight
        inputs, outputs = weight.weight_KN.shape
        columns = weight.outlier_columns_M.numpy()
        row[LinearField.OUTPUTS], row[LinearField.INPUTS], row[LinearField.OUTLIERS] = outputs, inputs, len(columns)
        row[LinearField.GROUP] = group = linear.group or inputs
        bias_N = torch.zeros(outputs) if linear.bias_N is None else linear.bias_N.detach().float()
        weight_NK = weight.weight_KN.t().contiguous().numpy()
        outlier_weight_MN = weight.outlier_weight_MN.float().numpy()
        records, epilogue = packed(weight_NK, group, weight.scale_N.float().numpy(), bias_N.numpy(), outlier_weight_MN)
        row[LinearField.WEIGHT] = self._append(0, self._weight_arrays, records)
        row[LinearField.EPILOGUE] = row[LinearField.WEIGHT] + epilogue
        row[LinearField.OUTLIER_COLUMNS] = self._append(2, self._int_arrays, columns.astype(np.int32))
        row[LinearField.SMOOTHING] = self._add_floats(weight.smoothing_K)

    def _add_floats(self, values: torch.Tensor) -> int:
        return self._append(1, self._float_arrays, values.detach().float().contiguous().view(-1).numpy())

    def _append(self, arena: int, arrays: list[Any], values: npt.NDArray[Any]) -> int:
        offset = self._used[arena]
        arrays.append(values)
        self._used[arena] += values.size
        return offset


def packed(
    weight_NK: npt.NDArray[np.int8],
    group: int,
    scale_N: npt.NDArray[np.float32],
    bias_N: npt.NDArray[np.float32],
    outlier_weight_MN: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], int]:
    """Pack a linear layer into one record for each block of 16 outputs, one behind another.

    A record has, in this order:

    1. weights, int8 [inputs / 4, 16, 4]: for each quad of inputs the four weights of output 0, of output 1, … 15;
    2. compensation, int32 [16]: 128 · (sum of the output's weights). `vpdpbusd` takes unsigned activations, which have
       the zero point 128, so this is what each sum of products is too large by;
    3. epilogue data: scale and bias, float32 [16] each, and outlier weights, float16 [M, 16].

    If inputs come in several groups, each group has records of the first two: those of all blocks for one group, then
    those of all blocks for the next group; the epilogue data of all blocks is behind all of them.

    Args:
        weight_NK: [outputs, inputs], both multiples of 16.
        group: inputs that share an activation scale, a multiple of 16.
        scale_N: [outputs].
        bias_N: [outputs].
        outlier_weight_MN: [outlier inputs, outputs], values that float16 holds.

    Returns:
        The bytes, and the offset of the first block's epilogue data in them.
    """
    outputs, inputs = weight_NK.shape
    blocks = outputs // LANES
    halves_MN = outlier_weight_MN.astype(np.float16).reshape(-1, blocks, LANES).swapaxes(0, 1)
    epilogue = np.concatenate([_bytes(one, blocks) for one in (scale_N, bias_N, halves_MN)], axis=1)
    records = []
    for at in range(0, inputs, group):
        some_NK = weight_NK[:, at : at + group]
        quads = some_NK.reshape(blocks, LANES, -1, 4).swapaxes(1, 2)
        compensation_N = 128 * some_NK.sum(axis=1, dtype=np.int32)
        records.append(np.concatenate([_bytes(quads, blocks), _bytes(compensation_N, blocks)], axis=1))
    if len(records) == 1:
        return np.concatenate([records[0], epilogue], axis=1).reshape(-1), records[0].shape[1]
    return np.concatenate([one.reshape(-1) for one in (*records, epilogue)]), sum(record.size for record in records)


def _bytes(values: npt.NDArray[Any], blocks: int) -> npt.NDArray[np.int8]:
    """An array whose first dimension is blocks (times something) as bytes [blocks, bytes of a block]."""
    return np.ascontiguousarray(values).reshape(-1).view(np.int8).reshape(blocks, -1)


def fits(linear: DecoderLinear) -> bool:
    """Whether a layer can be packed.

    Outputs, inputs and groups are multiples of 16, outlier columns an even number, and float16 holds their weights.
    """
    inputs, outputs = linear.weight.weight_KN.shape
    aligned = all(size % LANES == 0 for size in (inputs, outputs, linear.group or inputs))
    floats = linear.weight.outlier_weight_MN
    held = floats.numel() == 0 or bool(floats.abs().max() <= torch.finfo(torch.float16).max)
    return aligned and held and len(linear.weight.outlier_columns_M) % 2 == 0


def _concatenated(arrays: list[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # torch aligns memory to 64 bytes, so vectors do not cross cache lines; NumPy does not.
    empty = torch.empty(sum(array.size for array in arrays), dtype=torch.from_numpy(np.zeros(0, dtype)).dtype)
    arena = huge_pages.advise(empty).numpy()
    return np.concatenate(arrays, out=arena) if arrays else arena
