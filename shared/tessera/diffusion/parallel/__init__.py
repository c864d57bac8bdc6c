"""One denoising step computed by several devices."""
