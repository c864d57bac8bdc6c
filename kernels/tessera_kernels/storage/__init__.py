"""How quantized weights and pages of keys and values lie in memory. Imports no Triton."""
