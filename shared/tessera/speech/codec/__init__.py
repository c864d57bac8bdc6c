"""Codec language models: text in, frames of audio codes out, decoded as a stream."""
