"""Repacks weights that other tools quantized to our storage order, exactly: no element or scale is rounded again.

Runs once when a model is loaded, in plain torch without kernels. Reads no files: callers pass tensors.
"""

from __future__ import annotations

from tessera_kernels.repack.awq import from_awq
from tessera_kernels.repack.gguf import from_gguf
from tessera_kernels.repack.gptq import from_gptq

__all__ = ["from_awq", "from_gguf", "from_gptq"]
