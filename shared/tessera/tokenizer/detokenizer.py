"""Converts tokens to text incrementally, so that an answer is streamed as whole characters while its tokens arrive."""

from __future__ import annotations

from tokenizers.decoders import DecodeStream

from tessera.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """The text of a growing list of tokens: whole characters, as soon as they are complete.

    Args:
        tokenizer: of the model.
        prompt_ids: tokens of the prompt; the last of them are the context of the first token.
        shown: control tokens that are part of the text, because a parser reads them. Others are left out.
        shows_control: whether all control tokens are part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: list[int],
        shown: tuple[str, ...] = (),
        *,
        shows_control: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        if shows_control:
            shown = tokenizer.control
        ids = ((tokenizer.fast.token_to_id(spelling), spelling) for spelling in shown if spelling in tokenizer.control)
        self._control = {token: spelling for token, spelling in ids if token is not None}
        # The last prompt tokens are the left context that decoders need to join words.
        self._stream = DecodeStream(ids=prompt_ids[-5:], skip_special_tokens=True)
        self._tokens: list[int] = prompt_ids[-5:]
        self._shown = len(self._tokens)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete, or for a token that is left
        out."""
        if token_id in self._control:
            incomplete = self.flush()
            # A new stream, because the library's would continue the incomplete character.
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
        """The text of an incomplete character at the end, as replacement characters; empty when there is none."""
        if self._shown == len(self._tokens):
            return ""
        # Both texts have the same left context, because decoders treat the beginning of a text differently.
        before = self._tokenizer.decode(self._tokens[: self._shown])
        return self._tokenizer.decode(self._tokens)[len(before) :]
