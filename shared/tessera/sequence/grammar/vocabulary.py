"""The bytes of every token, from a model's `tokenizer.json`: grammars are matched on bytes.

A token's bytes are those that it adds within a text: a leading space is part of it. Knows nothing about grammars.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tessera.tokenizer.files import byte_alphabet, stop_ids_of

_FALLBACK = re.compile(r"<0x(?P<byte>[0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary:
    """Tokens as bytes.

    Attributes:
        tokens: Bytes of each id up to the model's vocabulary; empty for control tokens and padding.
        control: Ids of control tokens by their spelling.
        stop_ids: Ids that end an answer.
        fast: The tokenizer.
    """

    tokens: list[bytes]
    control: dict[str, int]
    stop_ids: list[int]
    fast: Tokenizer

    @classmethod
    def from_directory(cls, directory: Path, size: int) -> Vocabulary:
        """Read the vocabulary of a model.

        Args:
            directory: Directory with the `tokenizer.json`.
            size: Number of token ids of the model; often more than its tokenizer has.
        """
        fast = Tokenizer.from_file(str(directory / "tokenizer.json"))
        decoder = json.dumps(json.loads(fast.to_str()).get("decoder"))
        added = fast.get_added_tokens_decoder()
        alphabet = byte_alphabet() if '"ByteLevel"' in decoder else None
        tokens = [b""] * size
        for text, token in fast.get_vocab(with_added_tokens=False).items():
            if token < size:
                tokens[token] = _bytes(text, alphabet)
        control = {}
        for token, entry in added.items():
            if token < size:
                tokens[token] = b"" if entry.special else entry.content.encode()
                if entry.special:
                    control[entry.content] = token
        return cls(tokens, control, [token for token in stop_ids_of(directory) if token < size], fast)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, or none if their bytes are not the text (some tokenizers add a space)."""
        ids: list[int] = self.fast.encode(text, add_special_tokens=False).ids
        known = all(token < len(self.tokens) for token in ids)
        return ids if known and b"".join(self.tokens[token] for token in ids) == text.encode() else []

    def with_markers(self, spellings: list[str]) -> list[bytes]:
        """Return the bytes of all tokens, with those of some control tokens, which a grammar contains as text."""
        tokens = list(self.tokens)
        for spelling in spellings:
            if spelling in self.control:
                tokens[self.control[spelling]] = spelling.encode()
        return tokens


def _bytes(text: str, alphabet: dict[str, int] | None) -> bytes:
    if alphabet is not None:
        if all(character in alphabet for character in text):
            return bytes(alphabet[character] for character in text)
        return text.encode()
    if fallback := _FALLBACK.fullmatch(text):
        return bytes([int(fallback["byte"], 16)])
    return text.replace("▁", " ").encode()
