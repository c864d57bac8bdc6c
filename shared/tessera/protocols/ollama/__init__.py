"""Ollama's API: requests to chat requests, chat answers to its answers and lines, models in its shape."""
