"""Pieces that the Triton kernels of several ops share."""
