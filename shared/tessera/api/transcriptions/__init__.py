"""`/v1/audio/transcriptions/{id}`: long recordings as jobs."""
