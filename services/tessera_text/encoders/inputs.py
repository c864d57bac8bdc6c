"""Makes an encoder's inputs: prompts, tokens, pairs and templates, within the limits of the service.

Every limit is checked before the engine gets anything: numbers of texts first, then lengths, then the tokens of all
texts together. Does not know what the engine computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Encoding

from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.hub.encoder_files import EncoderFiles
from tessera.settings.encoders import EncoderEngineSettings, EncoderSettings
from tessera.tokenizer.encoder_tokenizer import EncoderTokenizer, Side
from tessera.wire.engine import EncoderText
from tessera.wire.truncation import Truncate
from tessera_text.encoders.pair_template import MEETING_TOKENS, QWEN3_RERANKER, PairTemplate

_PROMPTS: dict[str, tuple[str, ...]] = {
    "query": ("query", "search_query", "retrieval.query"),
    "document": ("document", "passage", "corpus", "search_document", "retrieval.passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}
"""Prompts that an `input_type` stands for, the first that the model has."""
_INPUT_TYPES = {"search_query": "query", "search_document": "document", "passage": "document"}
"""Other names of input types."""


@dataclass(frozen=True)
class Cut:
    """Where a text that is too long is cut.

    Attributes:
        tokens: most tokens of the whole text, special ones included.
        side: where tokens go; None refuses a text that is too long.
    """

    tokens: int
    side: Side | None


def cut_of(truncate: Truncate | None, tokens: int | None, context: int) -> Cut:
    """How a request wants long texts to be cut.

    Raises:
        InvalidRequestError: it wants more tokens than the model takes.
    """
    word = str(truncate).lower() if truncate is not None else "none"
    sides: dict[str, Literal["left", "right"]] = {"true": "right", "end": "right", "start": "left"}
    if tokens is None:
        return Cut(context, sides.get(word))
    if tokens > context:
        raise InvalidRequestError(
            f"`truncate_prompt_tokens` is {tokens}; the model takes {context}", param="truncate_prompt_tokens"
        )
    return Cut(context if tokens < 0 else tokens, sides.get(word, "right"))


class EncoderInputs:
    """Makes the inputs of one encoder.

    Args:
        tokenizer: of the model.
        files: what its files say.
        settings: of the encoder.
        limits: of the service.
        context: most tokens of one text.
    """

    def __init__(
        self,
        tokenizer: EncoderTokenizer,
        files: EncoderFiles,
        settings: EncoderSettings,
        limits: EncoderEngineSettings,
        context: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.files = files
        self.context = context
        self._settings = settings
        self._limits = limits

    def prompt(self, input_type: str | None, prompt_name: str | None) -> str:
        """What is put before each text.

        Raises:
            InvalidRequestError: the model has no such prompt, or there is no such input type.
        """
        prompts = self.files.prompts
        if prompt_name is not None:
            if prompt_name not in prompts:
                known = ", ".join(prompts) or "none"
                raise InvalidRequestError(
                    f"the model has no prompt {prompt_name!r}; it has: {known}", param="prompt_name"
                )
            return prompts[prompt_name]
        if input_type is not None:
            kind = _INPUT_TYPES.get(input_type, input_type)
            if kind not in _PROMPTS:
                raise InvalidRequestError(
                    f"`input_type` is {input_type!r}; known are {', '.join([*_PROMPTS, *_INPUT_TYPES])}",
                    param="input_type",
                )
            return next((prompts[name] for name in _PROMPTS[kind] if name in prompts), "")
        return prompts.get(self.files.default_prompt or "", "")

    def check_count(self, count: int, *, param: str) -> None:
        """Refuse a request of too many texts.

        Raises:
            InvalidRequestError: names the limit.
        """
        if count > self._limits.max_texts:
            raise InvalidRequestError(
                f"`{param}` has {count} texts; at most {self._limits.max_texts} are allowed", param=param
            )

    async def texts(self, texts: Sequence[str], cut: Cut, *, prompt: str = "", param: str) -> list[EncoderText]:
        """The inputs for single texts.

        Raises:
            InvalidRequestError: there are too many, or one is empty.
            ContextLengthError: one is too long, or all together are.
        """
        self.check_count(len(texts), param=param)
        for index, text in enumerate(texts):
            if not text:
                raise InvalidRequestError(f"`{param}` {index} is empty", param=param)
        given = self._bounded([prompt + text for text in texts], cut, param=param)
        found = await asyncio.to_thread(self._singles, given, cut, prompt, param)
        return self._within_budget(found, param)

    def token_lists(self, lists: Sequence[list[int]], cut: Cut, *, param: str) -> list[EncoderText]:
        """The inputs for texts that came as tokens, which are taken as they are.

        Raises:
            InvalidRequestError: there are too many, one is empty, or the model has no such token.
            ContextLengthError: one is too long, or all together are.
        """
        self.check_count(len(lists), param=param)
        found = []
        for index, ids in enumerate(lists):
            if not ids:
                raise InvalidRequestError(f"`{param}` {index} is empty", param=param)
            if max(ids) >= self.tokenizer.vocabulary:
                raise InvalidRequestError(
                    f"`{param}` {index} has the token {max(ids)}; this model has {self.tokenizer.vocabulary} tokens "
                    "of its own, so tokens of another model mean nothing to it: send texts",
                    param=param,
                )
            if len(ids) > cut.tokens and cut.side is None:
                raise self._too_long(param, index, len(ids), cut.tokens)
            found.append(EncoderText(ids[-cut.tokens :] if cut.side == "left" else ids[: cut.tokens]))
        return self._within_budget(found, param)

    async def pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        cut: Cut,
        *,
        params: tuple[str, str],
        document_tokens: int | None = None,
        instruction: str | None = None,
    ) -> list[EncoderText]:
        """The inputs for pairs: one query with every document, or as many queries as documents.

        Args:
            queries: the first texts.
            documents: the second texts, of which tokens are cut off where `cut` says so.
            cut: the most tokens of a pair.
            params: names of the two fields in errors.
            document_tokens: most tokens of a document's own.
            instruction: takes the place of the one in the settings; only a template has one.

        Raises:
            InvalidRequestError: there are too many, one is empty, or an instruction has no place.
            ContextLengthError: a query is too long, a pair is, or all together are.
        """
        self.check_count(len(documents), param=params[1])
        for param, each in zip(params, (queries, documents), strict=True):
            if not all(each):
                raise InvalidRequestError(f"`{param}` has an empty text", param=param)
        template = self._template(instruction)
        self.tokenizer.check_length(list(queries), cut.tokens, param=params[0])
        heads = list(queries) * len(documents) if len(queries) == 1 else list(queries)
        given = self._bounded(list(documents), cut, param=params[1])
        if template is None:
            found = await asyncio.to_thread(self._tokenizer_pairs, heads, given, cut, params, document_tokens)
        else:
            found = await asyncio.to_thread(self._written_pairs, template, heads, given, cut, params, document_tokens)
        return self._within_budget(found, params[1])

    def _template(self, instruction: str | None) -> PairTemplate | None:
        """The template of pairs; None if the tokenizer has a form for them."""
        text = self._settings.template or (QWEN3_RERANKER if self.files.yes_no else "")
        if instruction is not None and not PairTemplate.has_instruction(text):
            raise InvalidRequestError("`instruction` has no place in how this model reads pairs", param="instruction")
        if not self.files.pairs_by_template:
            return None
        return PairTemplate(self.tokenizer, text, self._settings.instruction if instruction is None else instruction)

    def _tokenizer_pairs(
        self,
        queries: list[str],
        documents: list[str],
        cut: Cut,
        params: tuple[str, str],
        document_tokens: int | None,
    ) -> list[EncoderText]:
        known: dict[str, Encoding] = {}
        for text, encoding in zip(
            distinct := list(dict.fromkeys(queries)), self.tokenizer.encode(distinct), strict=True
        ):
            known[text] = encoding
        found = []
        for index, (text, document) in enumerate(zip(queries, self.tokenizer.encode(documents), strict=True)):
            query = known[text]
            if document_tokens is not None and len(document.ids) > document_tokens:
                document.truncate(document_tokens)
            room = self._room(cut, self.tokenizer.pair_specials, len(query.ids), params)
            if len(document.ids) > room:
                if cut.side is None:
                    total = self.tokenizer.pair_specials + len(query.ids) + len(document.ids)
                    raise self._too_long(params[1], index, total, cut.tokens)
                document.truncate(room, direction=cut.side)
            found.append(self._typed(*self.tokenizer.pair(query, document)))
        return found

    def _written_pairs(
        self,
        template: PairTemplate,
        queries: list[str],
        documents: list[str],
        cut: Cut,
        params: tuple[str, str],
        document_tokens: int | None,
    ) -> list[EncoderText]:
        found = []
        for index, (query, whole) in enumerate(zip(queries, documents, strict=True)):
            document = whole if document_tokens is None else template.cut(whole, document_tokens)
            ids = template.encode(query, document)
            if len(ids) > cut.tokens and cut.side is not None:
                query_tokens = len(self.tokenizer.encode([query])[0].ids)
                room = self._room(cut, template.tokens_around + MEETING_TOKENS, query_tokens, params)
                ids = template.encode(query, template.cut(document, room, cut.side))
            if len(ids) > cut.tokens:
                raise self._too_long(params[1], index, len(ids), cut.tokens)
            found.append(EncoderText(ids))
        return found

    def _room(self, cut: Cut, around: int, query: int, params: tuple[str, str]) -> int:
        """Tokens that a pair leaves to its document."""
        room = cut.tokens - around - query
        if room < 1:
            raise ContextLengthError(
                f"`{params[0]}` has {query} tokens, which leaves no room for a document among the {cut.tokens} tokens "
                "of a pair",
                param=params[0],
            )
        return room

    def _singles(self, texts: list[str], cut: Cut, prompt: str, param: str) -> list[EncoderText]:
        found, most = [], cut.tokens - self.tokenizer.single_specials
        skip = 0
        if prompt and not self.files.pools_prompt:
            ids = self.tokenizer.single(self.tokenizer.encode([prompt])[0])[0]
            # As sentence-transformers counts: with the special token before, without the one behind.
            skip = len(ids) - (1 if self.tokenizer.single_specials > 1 else 0)
        for index, encoding in enumerate(self.tokenizer.encode(texts)):
            if len(encoding.ids) > most:
                if cut.side is None:
                    total = len(encoding.ids) + self.tokenizer.single_specials
                    raise self._too_long(param, index, total, cut.tokens)
                encoding.truncate(max(most, 0), direction="right" if cut.side == "right" else "left")
            text = self._typed(*self.tokenizer.single(encoding))
            if not text.token_ids:
                raise InvalidRequestError(f"`{param}` {index} has no tokens", param=param)
            found.append(EncoderText(text.token_ids, text.types, min(skip, len(text.token_ids) - 1)))
        return found

    def _typed(self, ids: list[int], types: list[int]) -> EncoderText:
        return EncoderText(ids, types if self.files.token_types and any(types) else [])

    def _bounded(self, texts: list[str], cut: Cut, *, param: str) -> list[str]:
        """Texts of which no more is encoded than can be needed."""
        if cut.side is None:
            self.tokenizer.check_length(texts, cut.tokens, param=param)
            return texts
        return [self.tokenizer.shortened(text, cut.tokens, cut.side) for text in texts]

    def _within_budget(self, texts: list[EncoderText], param: str) -> list[EncoderText]:
        total = sum(len(text.token_ids) for text in texts)
        if total > self._limits.max_request_tokens:
            raise ContextLengthError(
                f"`{param}` has {total} tokens in all; one request may have {self._limits.max_request_tokens}",
                param=param,
            )
        return texts

    def _too_long(self, param: str, index: int, tokens: int, most: int) -> ContextLengthError:
        return ContextLengthError(
            f"`{param}` {index} has {tokens} tokens; the model takes {most}. `truncate_prompt_tokens` cuts long texts",
            param=param,
        )
