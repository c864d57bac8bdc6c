"""The diffusion engine: denoising steps of several clips at once. Knows no jobs and no HTTP."""
