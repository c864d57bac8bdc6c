"""Models: loading, the modules we replace, runners. Knows tensors, not requests' lives."""
