"""CogVideoX 1.0 and 1.5."""
