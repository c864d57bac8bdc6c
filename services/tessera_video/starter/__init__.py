"""Starter models of the video service: how each is made."""
