"""Benchmarks that start a suite as a user would and measure it from outside, over HTTP."""
