"""Tessera's gateway service."""
