"""Tokens to text, incrementally: an answer is streamed as whole characters while its tokens arrive."""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from tessera.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Text of a growing list of tokens: whole characters only, as soon as they are complete.

    Args:
        tokenizer: of the model.
        prompt_ids: what stands before.
        shown: control tokens whose spelling is text, because somebody reads them; the others are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: list[int], shown: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        ids = ((tokenizer.fast.token_to_id(spelling), spelling) for spelling in shown if spelling in tokenizer.control)
        self._control = {token: spelling for token, spelling in ids if token is not None}
        # The last prompt tokens give decoders that join words their left context.
        self._stream = DecodeStream(ids=prompt_ids[-5:], skip_special_tokens=True)
        self._tokens: list[int] = prompt_ids[-5:]
        self._shown = len(self._tokens)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete or for a token not shown."""
        if token_id in self._control:
            incomplete = self.flush()
            # Begun again, because the library's stream would go on with the incomplete character.
            self._tokens = self._tokens[: self._shown][-5:]
            self._shown = len(self._tokens)
            self._stream = DecodeStream(ids=self._tokens, skip_special_tokens=True)
            return incomplete + self._control[token_id]
        self._tokens.append(token_id)
        text = self._stream.step(self._tokenizer.fast, token_id) or ""
        if text:
            self._shown = len(self._tokens)
        return text

    def flush(self) -> str:
        """What was held back at the end: an incomplete character, shown as replacement characters."""
        if self._shown == len(self._tokens):
            return ""
        # Both with the same left context, because decoders treat the beginning of a text in their own way.
        before = self._tokenizer.decode(self._tokens[: self._shown])
        return self._tokenizer.decode(self._tokens)[len(before) :]
