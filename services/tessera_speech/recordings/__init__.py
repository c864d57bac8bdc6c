"""Uploaded recordings: decoding, voice activity, windows for the model, speakers."""
