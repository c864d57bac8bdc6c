"""The speech engine: synthesis and transcription. Knows no HTTP."""
