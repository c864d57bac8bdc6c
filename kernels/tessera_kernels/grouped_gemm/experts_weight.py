"""The weight of all experts of a layer: one of the storage types with a leading dimension for experts."""

from __future__ import annotations

from tessera_kernels.storage.quantized_weight import QuantizedWeight
from tessera_kernels.storage.scaled_weight import ScaledWeight

ExpertsWeight = QuantizedWeight | ScaledWeight


def sizes(weight: ExpertsWeight) -> tuple[int, int, int]:
    """Number of experts, outputs and inputs of a weight."""
    elements = weight.elements_NK if isinstance(weight, ScaledWeight) else weight.elements
    inputs = elements.shape[-1] if isinstance(weight, ScaledWeight) else weight.inputs
    return weight.experts[0], elements.shape[-2], inputs
