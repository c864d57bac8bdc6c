"""Skipping transformer blocks whose output changes little from one step to the next."""
