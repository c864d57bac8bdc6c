"""Model directories: where models come from, what is known about them, whether they are whole. Torch-free."""
