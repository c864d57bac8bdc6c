"""Grammars of structured output: compiled beside the engine's loop, and what each of them allows next."""
