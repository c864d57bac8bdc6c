"""Tessera's vision service."""
