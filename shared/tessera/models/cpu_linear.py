"""Linear layers in float32 on a CPU, through oneDNN with weights packed once.

torch multiplies float32 with MKL, which uses half of the arithmetic units of processors that are not Intel's; oneDNN
uses all (measured on AMD Zen 5, two cores: 447 against 189 GFLOP/s for 640 rows of 128 to 512). Does not know models:
it replaces layers wherever they are.
"""

from __future__ import annotations

import torch
from torch import nn

MIN_WEIGHTS = 4096
"""Fewest weights of a layer that is packed. A call of oneDNN takes about 15 us, which a smaller layer does not
repay."""
PACKED_ROWS = 64
"""Number of rows that the packed order of weights is chosen for. The order for one row sums many rows in another order;
with this one a row had the same bits for any number of rows, where that was tried."""


class PackedLinear(nn.Module):
    """A linear layer with packed weights.

    Args:
        layer: float32 on a CPU. Its own weight is not kept.

    Attributes:
        gelu: whether the layer applies exact GELU to its outputs.
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
        """[..., inputs] → GELU of the outputs, in one pass; `approximate` is that of `torch.nn.functional.gelu`."""
        return self._multiplied(x, "gelu", approximate)

    def _multiplied(self, x: torch.Tensor, then: str, how: str) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, then, [], how)
        return out


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of a model by packed ones, in place. Returns how many were replaced.

    Small layers and those of other dtypes or devices stay as they are. Where torch has no oneDNN, all do.
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
