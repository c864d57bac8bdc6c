"""Fill-in-the-middle prompts: what stands before and behind a hole, as the model's own control tokens frame it.

Formats: Qwen2.5-Coder and CodeGemma (`<|fim_prefix|>`), StarCoder and Granite (`<fim_prefix>`), DeepSeek-Coder
(`<｜fim▁begin｜>`), Code Llama (`▁<PRE>`), Codestral (`[SUFFIX]`, which comes first). Source: the models' cards and
tokenizers. Knows nothing about the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.errors import InvalidRequestError
from tessera.tokenizer.tokenizer import Tokenizer

BEFORE, BEHIND = "before", "behind"
_FORMATS = (
    ("<|fim_prefix|>", BEFORE, "<|fim_suffix|>", BEHIND, "<|fim_middle|>"),
    ("<fim_prefix>", BEFORE, "<fim_suffix>", BEHIND, "<fim_middle>"),
    ("<｜fim▁begin｜>", BEFORE, "<｜fim▁hole｜>", BEHIND, "<｜fim▁end｜>"),
    ("▁<PRE>", BEFORE, "▁<SUF>", BEHIND, "▁<MID>"),
    ("[SUFFIX]", BEHIND, "[PREFIX]", BEFORE),
)
_ENDS = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "▁<EOT>", "<|endoftext|>")
"""Tokens that models write where the middle is complete, beside those that end every answer."""


@dataclass(frozen=True)
class FillInFormat:
    """How one model is asked to fill in.

    Attributes:
        parts: ids of control tokens, and where what stands before and behind the hole goes.
        first: tokens that begin every prompt.
        ends: tokens that end the middle.
    """

    parts: tuple[int | str, ...]
    first: list[int]
    ends: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FillInFormat | None:
        """The format of a model; None if its tokenizer has no tokens for it."""
        for spelled in _FORMATS:
            parts = tuple(
                one if one in {BEFORE, BEHIND} else tokenizer.fast.token_to_id(one)  # None: no such token
                for one in spelled
            )
            if None not in parts:
                ends = [token for end in _ENDS if (token := tokenizer.fast.token_to_id(end)) is not None]
                first = tokenizer.encode("", add_special_tokens=True)
                return cls(tuple(part for part in parts if part is not None), first, ends)
        return None

    def prompt(self, before: list[int], behind: list[int]) -> list[int]:
        """The tokens of a prompt whose answer is the middle."""
        ids = list(self.first)
        for part in self.parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += before if part == BEFORE else behind
        return ids


def fill_in_format(tokenizer: Tokenizer, model: str) -> FillInFormat:
    """The format of a model that fills in.

    Raises:
        InvalidRequestError: the model has no tokens for it; names `suffix`.
    """
    found = FillInFormat.of(tokenizer)
    if found is None:
        raise InvalidRequestError(
            f"`suffix`: the model {model!r} has no fill-in-the-middle tokens; leave it out, or use a code model",
            param="suffix",
        )
    return found
