"""Weights that others quantized, in our order of storage, exactly: no number and no scale is rounded again.

Plain torch, once when a model is loaded; there is nothing to launch. Does not read files: it gets their tensors.
"""

from __future__ import annotations

from tessera_kernels.repack.awq import from_awq
from tessera_kernels.repack.gguf import from_gguf
from tessera_kernels.repack.gptq import from_gptq

__all__ = ["from_awq", "from_gguf", "from_gptq"]
