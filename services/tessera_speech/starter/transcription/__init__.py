"""The starter `english-transcription`: a small Parakeet-CTC model that writes down English formant speech."""
