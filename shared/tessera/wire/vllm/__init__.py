"""Shapes that vLLM added to OpenAI's API: parameters, log-probabilities, token routes."""
