"""Blocks of Diffusers' transformers through `tessera_kernels`: attention, adaptive norms, rotary positions, products.

One file a family. A block of ours takes the parts of Diffusers' block over under their names, so weights and adapters
are found where they were, and computes what it computed. Does not know pipelines, nor how weights are stored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from tessera.diffusion.families.block_attention import IMAGE, Precision, RotaryTables, attentions
from tessera.diffusion.families.cogvideox import blocks as cogvideox
from tessera.diffusion.families.ltx import blocks as ltx
from tessera.diffusion.families.wan import blocks as wan
from tessera.models.fusion import fuse_layers, replace_norms

BLOCKS: dict[str, type[wan.WanBlock | ltx.LTXBlock | cogvideox.CogVideoXBlock]] = {
    "WanTransformerBlock": wan.WanBlock,
    "LTXVideoTransformerBlock": ltx.LTXBlock,
    "CogVideoXBlock": cogvideox.CogVideoXBlock,
}
"""By the class of Diffusers that it stands for."""


@dataclass
class FusionReport:
    """What was fused in a transformer's blocks, by name and how many times."""

    blocks: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    """Classes of blocks for which there is none of ours: they run as Diffusers has them."""
    projections: Counter[str] = field(default_factory=Counter)
    norms: int = 0

    def __str__(self) -> str:
        parts = [f"{name} ×{count}" for name, count in (self.blocks + self.projections).items()]
        parts += [f"norms ×{self.norms}"] if self.norms else []
        parts += [f"not {name} ×{count}" for name, count in self.unknown.items()]
        return ", ".join(parts) or "nothing"


def fuse_block(block: nn.Module, precision: Precision, tables: RotaryTables, report: FusionReport) -> nn.Module:
    """The block of ours for a block of Diffusers, whose parts it takes; the same where there is none.

    Args:
        block: on its device.
        precision: of its self attention.
        tables: shared by all blocks of a transformer.
        report: is added to.
    """
    name = type(block).__name__
    kind = BLOCKS.get(name)
    if kind is None or not type(block).__module__.startswith("diffusers."):
        report.unknown[name] += 1
        return block
    for layer, names in attentions(block):
        report.projections.update(filter(None, [fuse_layers(layer, names), fuse_layers(layer, IMAGE)]))
        report.norms += replace_norms(layer)
    report.blocks[name] += 1
    return kind(block, precision, tables)
