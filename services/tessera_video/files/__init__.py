"""Frames into files: containers, still images, previews, and the metadata they carry."""
