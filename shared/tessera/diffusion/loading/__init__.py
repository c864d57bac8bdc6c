"""Loading a Diffusers directory: what stays on the device, what is quantized, which adapters there are."""
