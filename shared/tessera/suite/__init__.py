"""The suite: the processes that `tessera up` starts, watches and stops. Torch-free; imports no part's code."""
