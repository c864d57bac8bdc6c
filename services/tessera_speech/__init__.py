"""Tessera's speech service."""
