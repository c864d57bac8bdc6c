"""Live sessions: speech in while it is said, transcripts and speech out. OpenAI's Realtime events over a WebSocket."""
