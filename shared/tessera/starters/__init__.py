"""Starters: how the small models that the suite ships are trained, judged and put where models are."""
