"""Tokens of texts and pairs of texts for encoders, cut to a length where that is asked for.

Special tokens and token types come from the tokenizer's own forms for one text and for a pair. A text that spells a
special token is encoded as the characters that it is made of. Does not know what a model computes.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

from tokenizers import Encoding
from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ContextLengthError
from tessera.tokenizer.tokenizer import Tokenizer

CHARACTERS = 64
"""Characters for each token of the context up to which a text is encoded to see how long it is. White space and unknown
words have fewer tokens than characters, so the longest token says nothing about the longest text."""

Side = Literal["left", "right"]


class EncoderTokenizer:
    """The tokenizer of an encoder.

    Args:
        directory: the model directory.
        lowercase: whether texts are lower-cased first.

    Attributes:
        vocabulary: number of tokens.
        single_specials: special tokens around one text.
        pair_specials: special tokens around and between the texts of a pair.

    Raises:
        ModelLoadError: `tokenizer.json` cannot be read.
    """

    def __init__(self, directory: Path, *, lowercase: bool = False) -> None:
        self.tokenizer = Tokenizer(directory)
        self._fast = self.tokenizer.fast
        self._directory = directory
        self._lowercase = lowercase
        self.vocabulary = self._fast.get_vocab_size()
        self.single_specials = self._fast.num_special_tokens_to_add(False)
        self.pair_specials = self._fast.num_special_tokens_to_add(True)

    def check_length(self, texts: list[str], most: int, *, param: str) -> None:
        """Refuse texts that are far longer than `most` tokens, before they are encoded.

        Raises:
            ContextLengthError: names the length.
        """
        longest = max(map(len, texts), default=0)
        if longest > self._most_characters(most):
            raise ContextLengthError(
                f"`{param}` has {longest} characters, which is far more than the model's {most} tokens", param=param
            )

    def shortened(self, text: str, most: int, side: Side = "right") -> str:
        """The part of a text that is enough for `most` tokens, so that a far longer text costs no more."""
        enough = self._most_characters(most + 1)
        return text[:enough] if side == "right" else text[-enough:]

    def encode(self, texts: list[str]) -> list[Encoding]:
        """The texts' own tokens. Call it in a thread."""
        if self._lowercase:
            texts = [text.lower() for text in texts]
        found: list[Encoding] = self._fast.encode_batch(texts, add_special_tokens=False)
        for index, text in enumerate(texts):
            if any(token in text for token in self.tokenizer.control):
                found[index] = self._plain.encode(text, add_special_tokens=False)
        return found

    def single(self, encoding: Encoding) -> tuple[list[int], list[int]]:
        """Token ids and types of one text with its special tokens."""
        whole = self._fast.post_process(encoding, None, True)
        return list(whole.ids), list(whole.type_ids)

    def pair(self, first: Encoding, second: Encoding) -> tuple[list[int], list[int]]:
        """Token ids and types of a pair with its special tokens."""
        whole = self._fast.post_process(first, second, True)
        return list(whole.ids), list(whole.type_ids)

    def _most_characters(self, tokens: int) -> int:
        return max(self.tokenizer.most_characters(tokens), tokens * CHARACTERS)

    @cached_property
    def _plain(self) -> FastTokenizer:
        fast = FastTokenizer.from_file(str(self._directory / "tokenizer.json"))
        fast.no_padding()
        fast.no_truncation()
        fast.encode_special_tokens = True
        return fast
