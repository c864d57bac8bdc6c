"""Transcription on the side of HTTP: from a recording to a transcript in one of OpenAI's formats."""
