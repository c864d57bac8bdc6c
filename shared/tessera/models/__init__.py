"""A directory of weights made to run: loading, and the modules that Tessera replaces. Knows nothing about requests."""
