"""Starter models of the vision service: how each is made."""
