"""Tessera's video service."""
