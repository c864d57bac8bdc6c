"""Families of video models: one folder per family, one interface for all."""
