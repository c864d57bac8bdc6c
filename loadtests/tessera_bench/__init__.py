"""The load generator and benchmarks."""
