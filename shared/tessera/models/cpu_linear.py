"""Linear layers in float32 on a CPU, through oneDNN with weights packed once.

torch multiplies float32 by MKL, which on processors that are not Intel's leaves half of the arithmetic unused; oneDNN
does not (measured on AMD Zen 5, two cores: 447 against 189 GFLOP/s for 640 rows of 128 to 512). Does not know models:
it replaces layers wherever they are.
"""

from __future__ import annotations

import torch
from torch import nn

MIN_WEIGHTS = 4096
"""Smaller layers stay as they are: a call of oneDNN takes some 15 us."""
PACKED_ROWS = 64
"""Rows that the order of weights is chosen for. For one row oneDNN has another, and with that adds up in another order
for many; with this one a row was the same bits for any number of rows, where it was tried."""


class PackedLinear(nn.Module):
    """A linear layer that was packed.

    Args:
        layer: float32 on a CPU. Its weight is not kept.

    Attributes:
        gelu: whether GELU, without approximation, is behind it.
    """

    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PACKED_ROWS)
        self.gelu = False
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach(), persistent=False)

    @property
    def nbytes(self) -> int:
        """Bytes of weight and bias."""
        return 4 * self.in_features * self.out_features + (0 if self.bias is None else self.bias.nbytes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - as `nn.Linear` calls it
        """[..., inputs] → [..., outputs], float32."""
        return self._multiplied(input, "gelu", "none") if self.gelu else self._multiplied(input, "none", "")

    def with_gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """The same with GELU behind it, in one pass; `approximate` as `torch.nn.functional.gelu` takes it."""
        return self._multiplied(x, "gelu", approximate)

    def _multiplied(self, x: torch.Tensor, then: str, how: str) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, then, [], how)
        return found


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of a model, in place. Returns how many were.

    Layers of other dtypes or devices, and small ones, stay; so does all where torch has no oneDNN.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    chosen = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and _is_packable(child)
    ]
    for module, name, child in chosen:
        setattr(module, name, PackedLinear(child))
    return len(chosen)


def _is_packable(layer: nn.Linear) -> bool:
    weight = layer.weight
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.numel() >= MIN_WEIGHTS
