"""What the engine needs of a grammar: the tokens that may come next, for one request.

Knows nothing about how grammars are written or compiled; see `backends`. Rollback is for speculation: rejected draft
tokens are taken back.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from tessera.wire.engine import Thinking


class Matcher(Protocol):
    """The state of one request in its grammar. Used by one thread."""

    @property
    def ended(self) -> bool:
        """Whether a stop token was accepted, so that nothing can follow."""
        ...

    def fill_mask(self, mask_RW: torch.Tensor, row: int) -> None:
        """Set the bits of the tokens that may come next, and clear the others. The state stays the same.

        Args:
            mask_RW: int32 on the CPU, [rows, ceil(vocabulary / 32)]; bit i % 32 of word i // 32 is token i.
            row: Row to fill.
        """
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token. Returns False, and stays, if the grammar does not allow the token here."""
        ...

    def forced(self) -> list[int]:
        """Return the next tokens as far as the grammar leaves no choice, as the tokenizer writes them; may be none.

        A last token is left out if a longer token that goes on behind it would be allowed, too. The state stays.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ...


class ThinkingMatcher:
    """A matcher whose grammar begins behind the model's thinking; until then every token but a stop token is allowed.

    A model that may think but need not is held to its grammar from its first token on if that does not begin thinking.

    Args:
        inner: Matcher of the grammar.
        thinking: Tokens that begin and end thinking, and whether the prompt has begun it.
        stop_ids: Ids that end an answer.
        vocabulary: Number of token ids of the model.
    """

    def __init__(self, inner: Matcher, thinking: Thinking, stop_ids: list[int], vocabulary: int) -> None:
        self._inner = inner
        self._thinking = thinking
        self._tokens: list[int] = []
        self._began: int | None = None
        """Number of tokens before the grammar, once it has begun."""
        words = torch.full((-(-vocabulary // 32) * 32,), 1, dtype=torch.int64)
        words[vocabulary:] = 0
        words[[token for token in stop_ids if token < vocabulary]] = 0
        self._free_W = pack_mask(words[None])[0]

    @property
    def ended(self) -> bool:
        """Whether a stop token was accepted."""
        return self._inner.ended

    def fill_mask(self, mask_RW: torch.Tensor, row: int) -> None:
        """Fill a row of the mask as `Matcher.fill_mask` says."""
        if self._began is None and (self._tokens or self._thinking.open):
            mask_RW[row] = self._free_W
            return
        self._inner.fill_mask(mask_RW, row)
        if self._began is None and self._thinking.begin is not None:
            word, bit = divmod(self._thinking.begin, 32)
            mask_RW[row, word] = torch.bitwise_or(mask_RW[row, word], _bit(bit))

    def accept(self, token: int) -> bool:
        """Accept a token as `Matcher.accept` says."""
        if self._began is None and not self._tokens and not self._thinking.open and token != self._thinking.begin:
            self._began = 0
        if self._began is not None:
            if not self._inner.accept(token):
                self._began = self._began if self._tokens else None
                return False
            self._tokens.append(token)
            return True
        word, bit = divmod(token, 32)
        if not self._tokens and not self._thinking.open:
            assert token == self._thinking.begin
        elif not (int(self._free_W[word]) >> bit) & 1:
            return False
        self._tokens.append(token)
        end = self._thinking.end
        if self._tokens[-len(end) :] == end:
            self._began = len(self._tokens)
        return True

    def forced(self) -> list[int]:
        """Return the forced tokens as `Matcher.forced` says."""
        return self._inner.forced() if self._began is not None else []

    def rollback(self, count: int) -> None:
        """Take tokens back as `Matcher.rollback` says."""
        if self._began is not None:
            self._inner.rollback(min(count, len(self._tokens) - self._began))
        del self._tokens[len(self._tokens) - count :]
        if self._began is not None and (len(self._tokens) < self._began or not self._tokens):
            self._began = None


def fill_single_token(mask_RW: torch.Tensor, row: int, token: int) -> None:
    """Set one token's bit in a row of a mask, and clear the others."""
    word, bit = divmod(token, 32)
    mask_RW[row] = 0
    mask_RW[row, word] = _bit(bit)


def _bit(place: int) -> torch.Tensor:
    return torch.tensor(1 << place, dtype=torch.int64).to(torch.int32)


def pack_mask(allowed_RV: torch.Tensor) -> torch.Tensor:
    """Pack int64 zeros and ones, [rows, a multiple of 32], into int32 words, 32 bits each."""
    bits_RW32 = allowed_RV.reshape(allowed_RV.shape[0], -1, 32) << torch.arange(32)
    return bits_RW32.sum(dim=-1).to(torch.int32)


def unpack_mask(mask_RW: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return the bits of a mask as booleans, [rows, vocabulary]; tokens beyond the mask are not allowed."""
    if mask_RW.device.type == "cpu":  # NumPy's unpackbits is ten times as fast as shifting
        bytes_RB = mask_RW.numpy().astype("<i4", copy=False).view(np.uint8)
        bits_RV = torch.from_numpy(np.unpackbits(bytes_RB, axis=1, bitorder="little")).bool()
    else:
        places = torch.arange(32, dtype=torch.int32, device=mask_RW.device)
        bits_RV = ((mask_RW[:, :, None] >> places) & 1).flatten(1).bool()
    missing = vocabulary - bits_RV.shape[1]
    return torch.nn.functional.pad(bits_RV, (0, missing)) if missing > 0 else bits_RV[:, :vocabulary]
