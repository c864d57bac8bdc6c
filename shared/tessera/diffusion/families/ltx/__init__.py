"""LTX-Video."""
