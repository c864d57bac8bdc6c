"""Decoders that run as one compiled call per step on a CPU."""
