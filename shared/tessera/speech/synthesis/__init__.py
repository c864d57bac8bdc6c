"""Synthesis models that compute a whole sentence: VITS and FastSpeech."""
