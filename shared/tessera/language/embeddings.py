"""Embeddings: one vector for each input, the normalized mean of the model's last hidden states."""

from __future__ import annotations

import array
import base64
import contextlib
import math
import sys
import uuid
from functools import partial

from tessera.engine.client import EngineClient
from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.language.completions import token_lists
from tessera.language.generation import GenerationLimits
from tessera.language.together import run_bounded
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
            Embedding(index=index, embedding=_written(_shortened(vector, request.dimensions), request.encoding_format))
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
                return _floats(answer.vector.data)
        raise AssertionError("the engine answered nothing")


def _floats(data: bytes) -> array.array[float]:
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _shortened(vector: array.array[float], dimensions: int | None) -> array.array[float]:
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise InvalidRequestError(f"`dimensions` is {dimensions}; this model has {len(vector)}", param="dimensions")
    first = vector[:dimensions]
    length = math.sqrt(sum(value * value for value in first)) or 1.0
    return array.array("f", (value / length for value in first))


def _written(vector: array.array[float], encoding: str) -> list[float] | str:
    if encoding == "float":
        return vector.tolist()
    if sys.byteorder == "big":
        vector = array.array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
