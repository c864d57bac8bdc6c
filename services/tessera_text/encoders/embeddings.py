"""Embeddings by an encoder, in OpenAI's shape and in Cohere's."""

from __future__ import annotations

import array
import uuid

from tessera.errors import InvalidRequestError
from tessera.language.vectors import shortened, written
from tessera.wire.chat import Embedding, EmbeddingList, EmbeddingRequest
from tessera.wire.engine import EncoderText
from tessera.wire.ranking import (
    BilledUnits,
    CohereEmbeddings,
    CohereEmbedRequest,
    CohereMeta,
    CohereTokens,
    CohereVectors,
    CohereVersion,
)
from tessera_text.encoders.inputs import cut_of
from tessera_text.encoders.tools import EncoderTools, tokens_of, usage_of


async def embed(tools: EncoderTools, request: EmbeddingRequest) -> EmbeddingList:
    """One vector for each input, in order.

    Raises:
        InvalidRequestError: an input, the prompt or `dimensions` is not one for this model.
        ContextLengthError: an input is too long and is not to be cut.
    """
    check_dimensions(tools, request.dimensions, param="dimensions")
    texts = await _inputs(tools, request)
    vectors = await tools.run(texts, priority=request.priority, deadline_s=request.deadline_s)
    data = [
        Embedding(
            index=index,
            embedding=written(
                shortened(vector, request.dimensions, normalize=tools.files.normalized), request.encoding_format
            ),
        )
        for index, vector in enumerate(vectors)
    ]
    return EmbeddingList(data=data, model=tools.card.id, usage=usage_of(texts))


async def embed_for_cohere(tools: EncoderTools, request: CohereEmbedRequest) -> CohereEmbeddings:
    """The vectors of texts in each form that Cohere's request asks for.

    Raises:
        InvalidRequestError, ContextLengthError: as `embed`; or there are no texts.
    """
    if (request.texts is None) == (request.inputs is None):
        raise InvalidRequestError("give `texts` or `inputs`, one of the two", param="texts")
    param = "texts" if request.texts is not None else "inputs"
    given = request.texts or ["\n".join(part.text for part in one.content) for one in request.inputs or []]
    check_dimensions(tools, request.output_dimension, param="output_dimension")
    cut = cut_of(request.truncate, request.max_tokens, tools.inputs.context)
    prompt = tools.inputs.prompt(request.input_type, None)
    texts = await tools.inputs.texts(given, cut, prompt=prompt, param=param)
    found = await tools.run(texts, priority=request.priority)
    vectors = [shortened(one, request.output_dimension, normalize=tools.files.normalized) for one in found]
    forms = request.embedding_types or ["float"]
    made: dict[str, list[list[float]] | list[list[int]] | list[str]] = {}
    if "float" in forms:
        made["floats"] = [one.tolist() for one in vectors]
    if "base64" in forms:
        made["base64"] = [str(written(one, "base64")) for one in vectors]
    if "ubinary" in forms:
        made["ubinary"] = [_bits(one) for one in vectors]
    if "binary" in forms:
        made["binary"] = [[byte - 128 for byte in _bits(one)] for one in vectors]
    count = tokens_of(texts)
    return CohereEmbeddings(
        id=uuid.uuid4().hex,
        embeddings=CohereVectors(**made),  # type: ignore[arg-type]
        texts=given,
        meta=CohereMeta(
            api_version=CohereVersion(version="2"),
            billed_units=BilledUnits(input_tokens=count),
            tokens=CohereTokens(input_tokens=count),
        ),
    )


def check_dimensions(tools: EncoderTools, dimensions: int | None, *, param: str) -> None:
    """Refuse a length that the model's vectors were not trained to be cut to.

    Raises:
        InvalidRequestError: names the lengths there are, or the setting that allows all.
    """
    allowed = tools.files.dimensions
    if dimensions is None or allowed is None or dimensions in allowed:
        return
    if allowed:
        raise InvalidRequestError(
            f"`{param}` is {dimensions}; {tools.card.id!r} has {', '.join(map(str, allowed))}", param=param
        )
    raise InvalidRequestError(
        f"`{param}`: the files of {tools.card.id!r} name no shorter embeddings; where the model was trained for them, "
        'set `dimensions = "any"` in its [[text.encoders]]',
        param=param,
    )


async def _inputs(tools: EncoderTools, request: EmbeddingRequest) -> list[EncoderText]:
    value = [request.input] if isinstance(request.input, str) else request.input
    cut = cut_of(request.truncate, request.truncate_prompt_tokens, tools.inputs.context)
    kinds = {type(item) for item in value}
    if len(kinds) != 1:
        raise InvalidRequestError(
            "`input` must be a string, or a list of only strings, only token ids, or only lists of token ids",
            param="input",
        )
    if kinds == {str}:
        prompt = tools.inputs.prompt(request.input_type, request.prompt_name)
        texts = [item for item in value if isinstance(item, str)]
        return await tools.inputs.texts(texts, cut, prompt=prompt, param="input")
    for name in ("input_type", "prompt_name"):
        if getattr(request, name) is not None:
            raise InvalidRequestError(f"`{name}` puts a text before texts; `input` has token ids", param=name)
    lists = [item for item in value if isinstance(item, list)]
    return tools.inputs.token_lists(lists or [[item for item in value if isinstance(item, int)]], cut, param="input")


def _bits(vector: array.array[float]) -> list[int]:
    """Whether each value is above 0, eight a byte, the first in the highest bit."""
    signs = [value > 0 for value in vector]
    signs += [False] * (-len(signs) % 8)
    return [sum(sign << (7 - place) for place, sign in enumerate(signs[at : at + 8])) for at in range(0, len(signs), 8)]
