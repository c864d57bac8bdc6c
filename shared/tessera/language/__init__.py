"""The HTTP side of language models, torch-free: templates, tokens, stop strings, choices, OpenAI's answers.

Text and vision services share it; what is particular to a modality is theirs.
"""
