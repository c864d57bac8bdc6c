"""Kernels: pure functions with a reference beside them. Imports nothing of the rest of Tessera."""
