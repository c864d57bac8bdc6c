"""Tessera's text service."""
