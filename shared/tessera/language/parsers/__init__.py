"""Parsers of what models write beside plain text, reasoning and tool calls: one file for each dialect.

A parser is a `Scanner`. It reads one character after another, so its events do not depend on how the text was cut.
"""
