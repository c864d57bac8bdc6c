"""Step caches: skip the transformer's blocks while their output changes little from one step to the next."""
