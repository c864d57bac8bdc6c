"""Embeddings: one vector for each input, the normalized mean of the model's last hidden states."""

from __future__ import annotations

import array
import contextlib
import uuid
from functools import partial

from tessera.engine.client import EngineClient
from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.language.completions import token_lists
from tessera.language.generation import GenerationLimits
from tessera.language.together import run_bounded
from tessera.language.vectors import floats, shortened, written
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.web.tenant import tenant_var
from tessera.wire.chat import Embedding, EmbeddingList, EmbeddingRequest, Usage
from tessera.wire.engine import Embed, Embedded


class Embeddings:
    """Answers embedding requests for one model.

    Args:
        model: its id in answers.
        engine: computes the vectors.
        tokenizer: of the model.
        limits: of the service.
    """

    def __init__(self, model: str, engine: EngineClient, tokenizer: Tokenizer, limits: GenerationLimits) -> None:
        self.model = model
        self.engine = engine
        self.tokenizer = tokenizer
        self.limits = limits

    async def answer(self, request: EmbeddingRequest) -> EmbeddingList:
        """One vector for each input, in order.

        `dimensions` keeps that many first values of a vector and normalizes it again, as OpenAI does.
        """
        for name in ("input_type", "prompt_name", "truncate", "truncate_prompt_tokens"):
            if getattr(request, name) is not None:
                raise InvalidRequestError(
                    f"`{name}` is for encoders; {self.model!r} is a language model, whose embeddings know none",
                    param=name,
                )
        inputs = await token_lists(request.input, self.tokenizer, self.limits, param="input")
        for index, ids in enumerate(inputs):
            if not ids:
                raise InvalidRequestError(f"`input` {index} is empty", param="input")
            if len(ids) > self.limits.context_length:
                raise ContextLengthError(
                    f"`input` {index} has {len(ids)} tokens; the model takes {self.limits.context_length}",
                    param="input",
                )
        vectors = await run_bounded([partial(self._embed, ids, request) for ids in inputs])
        data = [
            Embedding(index=index, embedding=written(shortened(vector, request.dimensions), request.encoding_format))
            for index, vector in enumerate(vectors)
        ]
        count = sum(len(ids) for ids in inputs)
        return EmbeddingList(data=data, model=self.model, usage=Usage(prompt_tokens=count, total_tokens=count))

    async def _embed(self, ids: list[int], request: EmbeddingRequest) -> array.array[float]:
        message = Embed(
            request_id=uuid.uuid4().hex,
            token_ids=ids,
            priority=request.priority,
            tenant=tenant_var.get(),
            deadline_s=request.deadline_s,
        )
        async with contextlib.aclosing(self.engine.request(message)) as answers:
            async for answer in answers:
                assert isinstance(answer, Embedded)
                return floats(answer.vector.data)
        raise AssertionError("the engine answered nothing")
