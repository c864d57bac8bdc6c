"""Model directories: where models come from, their cards, and whether their files are intact. Torch-free."""
