"""Models in CTranslate2's format: read, and written as directories of Transformers. Torch-free."""
