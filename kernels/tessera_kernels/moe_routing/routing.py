"""Types of `moe_routing`: how a router chooses experts, and in which order grouped products take its assignments.

Shape letters: A assignments (token and choice), P places, B tiles of places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class RoutingRule:
    """The rule by which the router of a model chooses the experts of a token.

    Attributes:
        chosen: number of experts of each token.
        scoring: the function that turns logits into scores.
        groups: number of groups of equal size that the experts are divided into.
        chosen_groups: number of groups whose experts a token may choose. The score of a group is the sum of its two
            best experts if there is a bias (DeepSeek-V3), and its best expert without one (DeepSeek-V2).
        renormalize: whether the weights of a token's chosen experts are scaled to add up to 1.
        factor: multiplies the weights, after they were renormalized.
    """

    chosen: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    renormalize: bool = True
    factor: float = 1.0


@dataclass(frozen=True)
class RoutingPlan:
    """The order in which grouped products take assignments: sorted by expert, each expert padded to whole tiles.

    Attributes:
        rows_P: int32, the assignment in each place; A in a place that is padding. Its length depends on the number of
            assignments and experts and not on the routing, so the host need not wait for the device.
        experts_B: int32, the expert of each tile of places; -1 for an unused tile.
        tile: number of places in a tile.
    """

    rows_P: torch.Tensor
    experts_B: torch.Tensor
    tile: int
