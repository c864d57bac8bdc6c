"""Keeps users' text literal in a rendered template, even where it spells a control token.

A template joins messages and control tokens into one string, and a tokenizer cannot know who wrote `<|im_end|>` in it.
So control tokens in a user's text are replaced by marks before rendering, and encoded as plain characters afterwards. A
conversation that spells none is encoded exactly as Transformers does it. Does not know templates.
"""

from __future__ import annotations

import re
import secrets

from tessera.tokenizer.tokenizer import Tokenizer


class Literals:
    """The control tokens that the text of one request spells.

    Args:
        tokenizer: knows the control tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nonce = secrets.token_hex(8)  # so that no text can contain a mark
        self._found: list[str] = []

    def hide(self, text: str) -> str:
        """`text` with a mark in place of each control token."""
        present = [token for token in self._tokenizer.control if token in text]
        return re.sub("|".join(map(re.escape, present)), self._mark, text) if present else text

    def pieces(self, rendered: str) -> list[tuple[str, bool]]:
        """The rendered text, split at the marks: pieces, and whether each is literal."""
        parts = re.split(rf"\[{self._nonce}:(\d+)\]", rendered)
        cut = [(self._found[int(part)], True) if index % 2 else (part, False) for index, part in enumerate(parts)]
        return [(text, literal) for text, literal in cut if text]

    def _mark(self, match: re.Match[str]) -> str:
        self._found.append(match[0])
        return f"[{self._nonce}:{len(self._found) - 1}]"
