"""KV-cache policy: which page holds which tokens, and who references it. Torch-free.

The tensors behind the pages are in `tessera.models.attention`.
"""
