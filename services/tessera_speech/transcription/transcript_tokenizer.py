"""Tokens and text of a transcription model, without torch: prompts to token ids, tokens to text, language codes.

Knows nothing about audio or HTTP.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from tessera.errors import InvalidRequestError, ModelLoadError
from tessera.tokenizer.model_files import read_as

ENGLISH = "en"
WORD_START = "▁"
"""SentencePiece's mark for the blank before a word."""


class _WhisperGenerationConfig(msgspec.Struct, frozen=True):
    """The fields of `generation_config.json` that are used."""

    lang_to_id: dict[str, int] = {}
    task_to_id: dict[str, int] = {}
    is_multilingual: bool = True


class _TranscriberConfig(msgspec.Struct, frozen=True):
    """The fields of `config.json` that are used. Transformers leaves out what equals its defaults, which are these."""

    max_target_positions: int = 448
    eos_token_id: int | None = 50256


class TranscriptTokenizer:
    """The tokenizer of a Whisper or Parakeet directory. Parakeet has no languages and no token that begins a prompt.

    Args:
        directory: has `tokenizer.json`, `config.json` and, for Whisper, `generation_config.json`.

    Raises:
        ModelLoadError: a file is missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        tokenizer = directory / "tokenizer.json"
        if not tokenizer.is_file():
            raise ModelLoadError(
                f"{tokenizer} is missing; `AutoTokenizer.from_pretrained(…).save_pretrained(…)` writes it"
            )
        try:
            generation = directory / "generation_config.json"
            config = read_as(directory / "config.json", _TranscriberConfig)
            there = generation.is_file()
            settings = read_as(generation, _WhisperGenerationConfig) if there else _WhisperGenerationConfig()
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:
            # `tokenizers` raises plain Exception for a file that it cannot parse
            if type(error) is not Exception:
                raise
            raise ModelLoadError(f"cannot read {tokenizer}: {error}") from error
        codes = settings.lang_to_id if settings.is_multilingual else {}
        self.languages = sorted(token.strip("<|>") for token in codes) or [ENGLISH]
        self._end = config.eos_token_id or 0
        self._max_prompt = config.max_target_positions // 2 - 1
        self._before = self._tokenizer.token_to_id("<|startofprev|>")
        self.continues = self._before is not None
        """Whether the model takes the transcript so far as context, and says itself where the next window begins."""
        self.translates = "translate" in settings.task_to_id and settings.is_multilingual
        """Whether the model can transcribe other languages into English."""

    def language(self, code: str | None) -> str | None:
        """A language code that the model knows, in lower case; None has the language detected.

        Raises:
            InvalidRequestError: the model does not know it.
        """
        if code is None:
            return None
        if code.lower() not in self.languages:
            raise InvalidRequestError(
                f"the model does not know the language {code!r}; it knows {', '.join(self.languages)}", param="language"
            )
        return code.lower()

    def prompt_ids(self, prompt: str | None) -> list[int]:
        """Token ids before the transcript; of a long prompt the end is used, as Whisper does.

        Raises:
            InvalidRequestError: the prompt has one of the model's special tokens in it.
        """
        if prompt is None or not prompt.strip():
            return []
        if self._before is None:
            raise InvalidRequestError("this model takes no prompt", param="prompt")
        ids = self._tokenizer.encode(" " + prompt.strip(), add_special_tokens=False).ids
        special = next((token for token in ids if token >= self._end), None)
        if special is not None:
            text = self._tokenizer.id_to_token(special)
            raise InvalidRequestError(f"the prompt must not contain the special token {text}", param="prompt")
        return [self._before, *ids[-(self._max_prompt - 1) :]]

    def text(self, token_ids: list[int]) -> str:
        """Text of text tokens, with a leading blank where they begin a word. Bytes that are not UTF-8 become U+FFFD."""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        # A SentencePiece decoder drops the first blank; Whisper's byte-level one keeps it.
        begins = bool(token_ids) and (self._tokenizer.id_to_token(token_ids[0]) or "").startswith(WORD_START)
        return f" {text}" if begins and not text.startswith(" ") else text


class IncrementalText:
    """Joins parts to a text without white space at its ends, so that text that was returned is never taken back."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""

    def add(self, part: str) -> str:
        """Add a part. Returns the text that is certain now; white space at the end waits for the next part."""
        whole = self._held + part
        if not self.text:
            whole = whole.lstrip()
        delta = whole.rstrip()
        self._held = whole[len(delta) :]
        self.text += delta
        return delta
