"""Converts between text and tokens: a `tokenizer.json` through the `tokenizers` library, without Transformers or
torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ContextLengthError, ModelLoadError
from tessera.tokenizer.files import BYTE_FALLBACK, byte_alphabet, read_json, stop_ids_of
from tessera.tokenizer.model_files import number, whole


@dataclass(frozen=True)
class SamplingDefaults:
    """The sampling parameters that a model's `generation_config.json` recommends.

    Attributes:
        temperature: 1 when none is recommended.
        top_p: 1 when none is recommended.
        top_k: 0, which means all tokens, when none is recommended.
    """

    temperature: float
    top_p: float
    top_k: int


class Tokenizer:
    """A model's tokenizer, and the ids that end its answers.

    Args:
        directory: the model directory.

    Attributes:
        fast: the library's tokenizer.
        stop_ids: token ids that end an answer.
        defaults: the model's recommended sampling parameters.
        control: spellings of the control tokens, longest first.

    Raises:
        ModelLoadError: `tokenizer.json` cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        try:
            self.fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception for every fault
            raise ModelLoadError(f"cannot read {path}: {error}") from error
        self.fast.no_padding()
        self.fast.no_truncation()
        self.stop_ids = stop_ids_of(directory)
        self.defaults = _defaults(directory)
        special = [token.content for token in self.fast.get_added_tokens_decoder().values() if token.special]
        self.control = tuple(sorted(filter(None, special), key=len, reverse=True))
        self._path = path
        self._longest = max(map(len, self.fast.get_vocab()), default=1)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a short text that Tessera itself wrote. Users' texts go through `encode_within`."""
        return list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)

    async def encode_within(
        self, texts: list[str], most: int, *, add_special_tokens: bool, param: str
    ) -> list[list[int]]:
        """Token ids of users' texts, computed in a thread so that the event loop runs on.

        Raises:
            ContextLengthError: a text is so long that it must have more than `most` tokens. It is not encoded.
        """
        self.check_length(max(map(len, texts), default=0), most, param=param)
        # Only the batch call releases the interpreter lock.
        encoded = await asyncio.to_thread(self.fast.encode_batch, texts, add_special_tokens=add_special_tokens)
        return [list(one.ids) for one in encoded]

    async def encode_pieces(self, pieces: list[tuple[str, bool]], most: int, *, param: str) -> list[int]:
        """Token ids of a rendered template, in a thread. Control tokens are recognized outside of literal pieces alone.

        Raises:
            ContextLengthError: all pieces together must have more than `most` tokens.
        """
        self.check_length(sum(len(text) for text, _ in pieces), most, param=param)
        return await asyncio.to_thread(self.encode_pieces_now, pieces)

    def encode_pieces_now(self, pieces: list[tuple[str, bool]]) -> list[int]:
        """Token ids of a rendered template of any length, in this thread."""
        ids: list[int] = []
        for text, literal in pieces:
            fast = self._plain if literal else self.fast
            ids += fast.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def check_length(self, characters: int, most: int, *, param: str) -> None:
        """Refuse a text that must have more than `most` tokens, before it is encoded.

        Raises:
            ContextLengthError: names the length and the context.
        """
        if characters > self.most_characters(most):
            raise ContextLengthError(
                f"`{param}` has {characters} characters, which is more than the model's context of {most} tokens",
                param=param,
            )

    def most_characters(self, tokens: int) -> int:
        """Most characters that so many tokens can stand for."""
        return tokens * self._longest

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. A character may be spread over the bytes of several tokens."""
        text = self.token_text(token_id)
        written = str(self.fast.id_to_token(token_id) or "")
        if "\ufffd" not in text:
            return text.encode()
        if fallback := BYTE_FALLBACK.fullmatch(written):
            return bytes([int(fallback["byte"], 16)])
        if all(character in self._bytes for character in written):
            return bytes(self._bytes[character] for character in written)
        return text.encode()

    @cached_property
    def _bytes(self) -> dict[str, int]:
        return byte_alphabet()

    @cached_property
    def _plain(self) -> FastTokenizer:
        """The same tokenizer, which encodes control tokens as characters."""
        fast = FastTokenizer.from_file(str(self._path))
        fast.no_padding()
        fast.no_truncation()
        fast.encode_special_tokens = True
        return fast

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self.fast.decode(token_ids, skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """The text of one token, as log-probabilities show it; a part of a character is a replacement character."""
        return str(self.fast.decode([token_id], skip_special_tokens=False))


def _defaults(directory: Path) -> SamplingDefaults:
    path = directory / "generation_config.json"
    values = read_json(path)
    return SamplingDefaults(
        temperature=number(values, "temperature", path) or 1.0,
        top_p=number(values, "top_p", path) or 1.0,
        top_k=max(0, whole(values, "top_k", path, least=-1) or 0),  # some say -1 for all tokens
    )
