"""The suite: what `tessera up` starts, watches and stops. Torch-free; no part's code is imported here, only run."""
