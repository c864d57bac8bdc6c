"""Recordings and files in messages: the model reads their text in their place."""
