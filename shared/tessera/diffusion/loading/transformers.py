"""Prepares a pipeline's transformers: moves each block to its device, fuses and quantizes it before the next block.

So a model that fits its device only when it is quantized never lies there in 16 bits. Only the products inside a block
(attention and feed-forward) are quantized; modulations, patches, embeddings and the output are not. Every layer stays
under its name as a module with `in_features`, `out_features` and `forward(x)`, so that an adapter can add its own
product to the module's output. Knows no requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from tessera.diffusion.families.block_attention import Precision, RotaryTables
from tessera.diffusion.families.fusing import BlockFusionReport, fuse_block
from tessera.diffusion.loading.cpu import pack_products
from tessera.models.offload import StreamedBlocks
from tessera.models.quantized import QuantizationReport, Scheme, quantize
from tessera_kernels.dispatch import triton_support

logger = logging.getLogger(__name__)

QUANTIZED = ("attn", "attn1", "attn2", "ffn", "ff", "ff_context")
"""Attributes of a block whose products are quantized."""


@dataclass(frozen=True)
class TransformerOptions:
    """Options for computing a pipeline's transformers.

    Attributes:
        weights: scheme of the products in blocks; `stored` keeps them as they are in the files.
        attention: precision of self-attention where Triton computes it.
    """

    weights: Literal["stored"] | Scheme = "stored"
    attention: Precision = "exact"
    fused: bool = True
    """Whether blocks are replaced by fused ones where Triton computes; otherwise they stay Diffusers' own."""


@dataclass(frozen=True)
class TransformerReport:
    """Summary of one prepared transformer; its `str` is for the log."""

    fused: BlockFusionReport | None
    """Counts of fused modules; None when the blocks stay Diffusers' own."""
    why_not: str
    """Reason why nothing was fused."""
    weights: str
    quantized: QuantizationReport

    def __str__(self) -> str:
        text = f"blocks as Diffusers has them: {self.why_not}" if self.fused is None else f"fused {self.fused}"
        done = self.quantized
        if done.layers:
            text += (
                f"; {done.layers} layers in {self.weights}, {done.bytes_before / 1e6:,.1f} to "
                f"{done.bytes_after / 1e6:,.1f} MB"
            )
        return text


def prepare(
    pipe: Any,
    block_list: str,
    place: torch.device,
    options: TransformerOptions,
    streamed: Mapping[str, int] | None = None,
) -> list[TransformerReport]:
    """Move the blocks of all transformers of a pipeline to a device, fused and quantized.

    Args:
        pipe: the pipeline; its other parts are not moved.
        block_list: name of the attribute that holds a transformer's blocks.
        place: the device. Blocks are fused if Triton computes there.
        options: how all transformers are computed.
        streamed: for each transformer, the number of its last blocks that stay on the host and are copied when used.

    Returns:
        One report per transformer, in the order of the pipeline's components.
    """
    coming, counts = StreamedBlocks(place), streamed or {}
    lists = list(_lists(pipe, block_list))
    return [_prepared(blocks, place, options, coming, counts.get(name, 0)) for name, blocks in lists]


def _lists(pipe: Any, block_list: str) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, component in pipe.components.items():
        blocks = getattr(component, block_list, None) if name.startswith("transformer") else None
        if isinstance(blocks, nn.ModuleList):
            yield name, blocks


@torch.no_grad()
def _prepared(
    blocks: nn.ModuleList, place: torch.device, options: TransformerOptions, coming: StreamedBlocks, streamed: int
) -> TransformerReport:
    answer = triton_support(torch.empty(0, device=place))
    fused, tables = BlockFusionReport() if answer.ok and options.fused else None, RotaryTables()
    layers = before = after = packed = 0
    for index, block in enumerate(blocks):
        made: nn.Module = block.to(place)
        if fused is not None:
            made = blocks[index] = fuse_block(made, options.attention, tables, fused)
        if fused is None and options.weights == "stored":
            packed += sum(pack_products(part) for part in _parts(made))
        for done in _quantized(made, options.weights):
            layers, before, after = layers + done.layers, before + done.bytes_before, after + done.bytes_after
        if index >= len(blocks) - streamed:
            coming.add(made, index - len(blocks) + streamed, streamed)
    why_not = answer.reason if options.fused else "their passes are shared by several devices"
    report = TransformerReport(fused, why_not, options.weights, QuantizationReport(layers, before, after))
    logger.info("%s%s", report, f"; {packed} layers packed for this CPU" if packed else "")
    if options.weights != "stored" and not layers:
        logger.warning(
            "no product of these blocks is large enough, or where blocks have them, to be in %s", report.weights
        )
    return report


def _quantized(block: nn.Module, weights: Literal["stored"] | Scheme) -> list[QuantizationReport]:
    return [] if weights == "stored" else [quantize(part, weights) for part in _parts(block)]


def _parts(block: nn.Module) -> list[nn.Module]:
    """Return the parts of a block whose products are quantized, or packed for a CPU."""
    parts = [getattr(block, name, None) for name in QUANTIZED]
    return [part for part in parts if isinstance(part, nn.Module)]
