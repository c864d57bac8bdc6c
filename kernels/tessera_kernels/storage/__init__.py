"""Memory formats of quantized weights and of paged keys and values. Imports no Triton, knows no op."""
