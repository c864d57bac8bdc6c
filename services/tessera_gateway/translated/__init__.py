"""Protocols over upstreams that speak chat completions alone: requests and answers are translated on their way."""
