"""The error of a request that no token can continue: the model's fault, or that of what the client asked for."""

from __future__ import annotations

from tessera.errors import InternalError, InvalidRequestError, TesseraError
from tessera.sequence.embeddings import NOT_FINITE
from tessera.sequence.request import SequenceRequest
from tessera.sequence.sampling.sampler import SampledToken


def no_token_error(request: SequenceRequest, sampled: SampledToken) -> TesseraError:
    """Return why a request got no token, or one that its grammar does not take.

    Args:
        request: It has been sampled for.
        sampled: What came of it.

    Returns:
        `InternalError` if the model computed no finite logits, or if what stopped the request is not the client's: a
        grammar of ours. Else the client's constraints leave no token: `InvalidRequestError`, which names the
        parameter, and after how many tokens.
    """
    sampling = request.sampling
    if not sampled.is_finite or sampling is None:
        return InternalError(NOT_FINITE)
    params = [] if sampling.grammar is None else [sampling.grammar.param]
    if sampling.allowed_ids is not None:
        params.append("allowed_token_ids")
    if sampling.banned:
        params.append("bad_words")
    if request.constraints is not None and request.constraints.holds(request.output_length):
        params.append("min_tokens")
    place = f"behind the {request.output_length} tokens of this answer" if request.output_length else "at its beginning"
    named = " and ".join(f"`{param}`" for param in params)
    verb = "allow" if len(params) > 1 else "allows"
    if not params:
        return InternalError(NOT_FINITE if request.matcher is None else f"the grammar allows no token {place}")
    return InvalidRequestError(f"{named} {verb} no token {place}", param=params[0])
