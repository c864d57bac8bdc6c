"""Tokens and text: a directory's `tokenizer.json` through the `tokenizers` library, without Transformers or torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import DecodeStream

from tessera.errors import ModelLoadError


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
        self.stop_ids = _stop_ids(directory)
        self.defaults = _defaults(directory)
        self.special_ids = frozenset(
            number for number, token in self.fast.get_added_tokens_decoder().items() if token.special
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. A rendered chat template has its special tokens already."""
        return list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of whole token ids, without special tokens."""
        return str(self.fast.decode(token_ids, skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """One token's own text as log-probabilities show it; a piece of a character is a replacement character."""
        return str(self.fast.decode([token_id], skip_special_tokens=False))


class Detokenizer:
    """Text of a growing list of tokens: whole characters only, as soon as they are complete."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int]) -> None:
        self._tokenizer = tokenizer
        # The last prompt tokens give decoders that join words their left context.
        self._stream = DecodeStream(ids=prompt_ids[-5:], skip_special_tokens=True)
        self._tokens: list[int] = []
        self._length = 0

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete or for a special token."""
        self._tokens.append(token_id)
        text = self._stream.step(self._tokenizer.fast, token_id) or ""
        self._length += len(text)
        return text

    def flush(self) -> str:
        """What was held back at the end: an incomplete character, shown as replacement characters."""
        return self._tokenizer.decode(self._tokens)[self._length :]


def _defaults(directory: Path) -> SamplingDefaults:
    path = directory / "generation_config.json"
    values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return SamplingDefaults(
        temperature=float(values.get("temperature") or 1.0),
        top_p=float(values.get("top_p") or 1.0),
        top_k=int(values.get("top_k") or 0),
    )


def _stop_ids(directory: Path) -> list[int]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            values = json.loads(path.read_text(encoding="utf-8"))
            eos = values.get("eos_token_id") or (values.get("text_config") or {}).get("eos_token_id")
            found = eos if isinstance(eos, list) else [eos] if eos is not None else []
        if found:
            break
    return found
