"""Speculative decoding: who drafts tokens, how many, and how they are verified."""
