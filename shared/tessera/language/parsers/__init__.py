"""What a model writes beside plain text, read as it comes: thoughts and tool calls, one file per way of writing them.

Every reader is a `Scanner`: it looks at one character after another, so how the text was cut cannot matter.
"""
