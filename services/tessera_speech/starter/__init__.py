"""Starter models of the speech service: how each is made."""
