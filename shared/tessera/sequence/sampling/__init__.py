"""From logits to tokens: filters, penalties, forced tokens, log-probabilities."""
