"""Context parallelism: several devices compute one denoising step together."""
