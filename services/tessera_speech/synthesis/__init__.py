"""Synthesis on the side of HTTP: voices, the request to the engine, audio files."""
