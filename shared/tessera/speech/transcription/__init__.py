"""Transcription models: Whisper, Parakeet-CTC and Parakeet-TDT."""
