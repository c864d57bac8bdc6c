"""Starters: how the small models that ship with the suite are trained, judged and installed."""
