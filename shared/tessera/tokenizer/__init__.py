"""Text to tokens and back, from a model directory alone. Torch-free."""
