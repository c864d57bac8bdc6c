"""Tokens and text: a directory's `tokenizer.json` through the `tokenizers` library, without Transformers or torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ContextLengthError, ModelLoadError
from tessera.tokenizer.files import BYTE_FALLBACK, byte_alphabet, read_json, stop_ids_of


@dataclass(frozen=True)
class SamplingDefaults:
    """What the model's makers recommend."""

    temperature: float
    top_p: float
    top_k: int


class Tokenizer:
    """A model's tokenizer and the ids that end its answers."""

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
        """How control tokens are spelled, longest first."""
        self._path = path
        self._longest = max(map(len, self.fast.get_vocab()), default=1)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a short text of ours; see `encode_within` for those of users."""
        return list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)

    async def encode_within(
        self, texts: list[str], most: int, *, add_special_tokens: bool, param: str
    ) -> list[list[int]]:
        """Token ids of users' texts, in a thread that lets the event loop run.

        Raises:
            ContextLengthError: a text is so long that it must have more than `most` tokens; it is not encoded.
        """
        self.check_length(max(map(len, texts), default=0), most, param=param)
        # Only the batch call releases the interpreter lock.
        encoded = await asyncio.to_thread(self.fast.encode_batch, texts, add_special_tokens=add_special_tokens)
        return [list(one.ids) for one in encoded]

    async def encode_pieces(self, pieces: list[tuple[str, bool]], most: int, *, param: str) -> list[int]:
        """Token ids of a rendered template, which has its control tokens already; literal pieces get none.

        Raises:
            ContextLengthError: as `encode_within`, for all pieces together.
        """
        self.check_length(sum(len(text) for text, _ in pieces), most, param=param)
        return await asyncio.to_thread(self.encode_pieces_now, pieces)

    def encode_pieces_now(self, pieces: list[tuple[str, bool]]) -> list[int]:
        """As `encode_pieces`, at once and of any length."""
        ids: list[int] = []
        for text, literal in pieces:
            fast = self._plain if literal else self.fast
            ids += fast.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def check_length(self, characters: int, most: int, *, param: str) -> None:
        """Refuse a text that must have more than `most` tokens, before anything is done with it.

        Raises:
            ContextLengthError: with the numbers.
        """
        if characters > most * self._longest:
            raise ContextLengthError(
                f"`{param}` has {characters} characters, which is more than the model's context of {most} tokens",
                param=param,
            )

    def token_bytes(self, token_id: int) -> bytes:
        """One token's own bytes: those of several tokens joined are a character of which each has a part."""
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
        """The same tokenizer for which control tokens are only characters."""
        fast = FastTokenizer.from_file(str(self._path))
        fast.no_padding()
        fast.no_truncation()
        fast.encode_special_tokens = True
        return fast

    def decode(self, token_ids: list[int]) -> str:
        """Text of whole token ids, without special tokens."""
        return str(self.fast.decode(token_ids, skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """One token's own text as log-probabilities show it; a piece of a character is a replacement character."""
        return str(self.fast.decode([token_id], skip_special_tokens=False))


def _defaults(directory: Path) -> SamplingDefaults:
    values = read_json(directory / "generation_config.json")
    return SamplingDefaults(
        temperature=float(values.get("temperature") or 1.0),
        top_p=float(values.get("top_p") or 1.0),
        top_k=int(values.get("top_k") or 0),
    )
