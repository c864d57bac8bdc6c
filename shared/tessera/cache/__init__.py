"""Cache policy: who holds which page of KV. Knows no tensors; storage is in `tessera.models.attention`."""
