"""Running one batch through a model: from chunks of tokens to logits."""
