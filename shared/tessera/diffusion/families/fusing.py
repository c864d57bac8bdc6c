"""Replaces blocks of Diffusers' transformers by blocks that compute with `tessera_kernels`, one file per family.

A block of ours keeps the parts of Diffusers' block under their names, so that weights and adapters are found where they
were, and computes the same values. Knows no pipelines, and not how weights are stored.
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
"""Our block for each block class of Diffusers, by that class's name."""


@dataclass
class BlockFusionReport:
    """Counts of the modules that were fused in a transformer's blocks; its `str` is for the log."""

    blocks: Counter[str] = field(default_factory=Counter)
    """Replaced blocks by the name of Diffusers' class."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Blocks that stay Diffusers' own because there is none of ours, by the name of their class."""
    projections: Counter[str] = field(default_factory=Counter)
    """Projections that were fused into one product, by their names."""
    norms: int = 0
    """Norms that were replaced."""

    def __str__(self) -> str:
        parts = [f"{name} ×{count}" for name, count in (self.blocks + self.projections).items()]
        parts += [f"norms ×{self.norms}"] if self.norms else []
        parts += [f"not {name} ×{count}" for name, count in self.unknown.items()]
        return ", ".join(parts) or "nothing"


def fuse_block(block: nn.Module, precision: Precision, tables: RotaryTables, report: BlockFusionReport) -> nn.Module:
    """Return our block for one of Diffusers' blocks, or that block itself when there is none of ours.

    Args:
        block: Diffusers' block, on its device; its parts are moved into ours.
        precision: precision of its self-attention.
        tables: rotary tables that all blocks of a transformer share.
        report: counts what was fused.
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
