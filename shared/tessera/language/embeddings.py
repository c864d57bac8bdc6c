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

        `dimensions` keeps that many first values of a vector and normalizes it again, as OpenAI does. `truncate` cuts
        the end of inputs that are too long.
        """
        for name in ("input_type", "prompt_name", "truncate_prompt_tokens"):
            if getattr(request, name) is not None:
                raise InvalidRequestError(
                    f"`{name}` is for encoders; {self.model!r} is a language model, whose embeddings know none",
                    param=name,
                )
        inputs = await self._inputs(request)
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

    async def _inputs(self, request: EmbeddingRequest) -> list[list[int]]:
        given, most = request.input, self.limits.context_length
        cut = str(request.truncate).lower()
        if cut == "start":
            raise InvalidRequestError(
                f"`truncate`: {self.model!r} is a language model, whose inputs are cut at their end alone; give `END`",
                param="truncate",
            )
        if cut not in {"true", "end"}:
            return await token_lists(given, self.tokenizer, self.limits, param="input")
        # No more of a text is encoded than can be needed.
        enough = self.tokenizer.most_characters(most)
        shorter = [
            text[:enough] if isinstance(text, str) else text for text in ([given] if isinstance(given, str) else given)
        ]
        return [ids[:most] for ids in await token_lists(shorter, self.tokenizer, self.limits, param="input")]

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
