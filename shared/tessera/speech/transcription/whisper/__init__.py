"""Whisper: batched encoding and decoding, timestamps, word times."""
