"""The benchmark of every op: correctness, time, and fraction of the roofline. `python -m tessera_kernels.bench`."""
