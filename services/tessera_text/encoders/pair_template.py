"""Writes a query and a document into a template, for rerankers that read one text instead of a pair.

The template's own control tokens count; what a query or a document spells stays text. Template and texts are encoded
together, because tokens may reach over the places where they meet. Does not know who asks.
"""

from __future__ import annotations

import re

from tessera.tokenizer.encoder_tokenizer import EncoderTokenizer, Side
from tessera.tokenizer.literals import Literals

QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt of Qwen3-Reranker, as its model card has it."""
MEETING_TOKENS = 4
"""Tokens that are kept free where texts are cut, because tokens at the places where texts meet may come out otherwise
when they are encoded together."""
_PLACES = re.compile(r"\{(instruction|query|document)\}")


class PairTemplate:
    """A template with the places {instruction}, {query} and {document}.

    Args:
        tokenizer: encodes what is written.
        template: the text around the places.
        instruction: takes the place of the instruction.
    """

    def __init__(self, tokenizer: EncoderTokenizer, template: str, instruction: str) -> None:
        self._tokenizer = tokenizer
        self._pieces = _PLACES.split(template)
        self._instruction = instruction
        self.tokens_around = len(self.encode("", ""))

    @staticmethod
    def has_instruction(template: str) -> bool:
        """Whether a template has a place for an instruction."""
        return "{instruction}" in template

    def encode(self, query: str, document: str) -> list[int]:
        """Token ids of the template with both texts."""
        literals = Literals(self._tokenizer.tokenizer)
        values = {
            "instruction": literals.hide(self._instruction),
            "query": literals.hide(query),
            "document": literals.hide(document),
        }
        rendered = "".join(values[piece] if place % 2 else piece for place, piece in enumerate(self._pieces))
        return self._tokenizer.tokenizer.encode_pieces_now(literals.pieces(rendered))

    def cut(self, document: str, room: int, side: Side = "right") -> str:
        """As much of a document as has at most `room` tokens."""
        encoding = self._tokenizer.encode([document])[0]
        if len(encoding.ids) <= room:
            return document
        if side == "right":
            return document[: encoding.offsets[room - 1][1]]
        return document[encoding.offsets[-room][0] :]
