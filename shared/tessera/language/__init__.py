"""The HTTP side of language models: conversations, stop strings, tool calls, and answers in OpenAI's shapes.

The text and vision services share it; each keeps what is particular to its modality. Torch-free.
"""
