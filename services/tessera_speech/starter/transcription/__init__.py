"""The starter `english-transcription`: a small Parakeet-CTC model that transcribes English formant speech."""
