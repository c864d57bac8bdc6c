"""The hot path: common requests of language models, from the client to an upstream and back by callbacks."""
