"""Converts a prompt or a conversation to tokens, and tokens to text. The shapes are vLLM's."""

from __future__ import annotations

import asyncio

from tessera.errors import InvalidRequestError
from tessera.language.chat import Prompter
from tessera.language.generation import GenerationLimits
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import ChatCompletionRequest
from tessera.wire.tools import Detokenized, DetokenizeRequest, Tokenized
from tessera.wire.vllm.tokens import TokenizeRequest


class Tokenization:
    """Answers the token routes for one model.

    Args:
        tokenizer: of the model.
        prompter: makes the prompt of a conversation.
        limits: of the service.
    """

    def __init__(self, tokenizer: Tokenizer, prompter: Prompter, limits: GenerationLimits) -> None:
        self._tokenizer = tokenizer
        self._prompter = prompter
        self._limits = limits

    async def tokenize(self, request: TokenizeRequest) -> Tokenized:
        """Token ids of the prompt as a completion would encode it, or of the messages as a chat answer would.

        Raises:
            InvalidRequestError: the request has neither or both, or the messages cannot be rendered.
        """
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("give `prompt` or `messages`, one of them", param="prompt")
        if request.messages is not None:
            chat = ChatCompletionRequest(
                model=request.model,
                messages=request.messages,
                tools=request.tools,
                chat_template=request.chat_template,
                chat_template_kwargs=request.chat_template_kwargs,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
            )
            ids = (await self._prompter(chat)).token_ids
        else:
            of_messages = (
                "tools",
                "chat_template",
                "chat_template_kwargs",
                "add_generation_prompt",
                "continue_final_message",
            )
            if name := next((name for name in of_messages if getattr(request, name)), None):
                raise InvalidRequestError(f"`{name}` is only allowed with `messages`", param=name)
            assert request.prompt is not None
            (ids,) = await self._tokenizer.encode_within(
                [request.prompt],
                self._limits.context_length,
                add_special_tokens=request.add_special_tokens,
                param="prompt",
            )
        strings = [self._tokenizer.token_text(token) for token in ids] if request.return_token_strs else None
        return Tokenized(count=len(ids), max_model_len=self._limits.context_length, tokens=ids, token_strs=strings)

    async def count(self, request: ChatCompletionRequest) -> int:
        """Number of tokens of a chat request's prompt.

        Raises:
            InvalidRequestError: the conversation cannot be rendered.
        """
        return len((await self._prompter(request)).token_ids)

    async def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        """The text of token ids, control tokens included.

        Raises:
            InvalidRequestError: an id that the tokenizer does not have.
        """
        size = self._tokenizer.fast.get_vocab_size()
        wrong = next((token for token in request.tokens if token >= size), None)
        if wrong is not None:
            raise InvalidRequestError(f"`tokens`: {wrong} is outside the vocabulary of {size}", param="tokens")
        text = await asyncio.to_thread(self._tokenizer.fast.decode, request.tokens, skip_special_tokens=False)
        return Detokenized(prompt=text)
