"""Quantizes weights once, offline, and reports the error of each layer.

Activations are quantized in each call by `scaled_linear.quantize_tokens`, with a scale for each token or for each 128
inputs of a token.
"""

from __future__ import annotations

from tessera_kernels.quantizers.report import LayerError, layer_error, table
from tessera_kernels.quantizers.scaled import quantize_scaled
from tessera_kernels.quantizers.weights import (
    quantize_fp8,
    quantize_int4,
    quantize_int4_offsets,
    quantize_int8,
    quantize_mxfp4,
    quantize_nvfp4,
)

__all__ = [
    "LayerError",
    "layer_error",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int4_offsets",
    "quantize_int8",
    "quantize_mxfp4",
    "quantize_nvfp4",
    "quantize_scaled",
    "table",
]
