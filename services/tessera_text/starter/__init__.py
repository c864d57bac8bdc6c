"""Starter models of the text service: how each is made."""
