"""Tessera's shared runtime: what the gateway and the four model services have in common."""
