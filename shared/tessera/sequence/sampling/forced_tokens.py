"""Tokens that a grammar leaves no choice about: a request takes them without sampling, and one step computes them all.

A name in a JSON schema, the frame of a tool call: written as the tokenizer writes them, where sampling could cut them
up as no text that the model has seen is cut. Where scores are asked for each token is sampled, so that it has one; the
forced one is all that its mask allows then, so the text is the same.
"""

from __future__ import annotations

from tessera.sequence.request import SequenceRequest


def update_forced(request: SequenceRequest) -> None:
    """Note what is forced next, when that is not known."""
    if request.matcher is not None and not request.forced:
        request.forced = request.matcher.forced()


def follow(request: SequenceRequest) -> list[int]:
    """What a request takes behind the token that it has just taken.

    Args:
        request: its grammar has accepted that token and goes on.

    Returns:
        Tokens, which are the request's own now; at most as many as it may have.
    """
    assert request.sampling is not None
    request.forced = request.forced[1:]
    if request.matcher is None:
        return []
    taken: list[int] = []
    update_forced(request)
    if request.sampling.logprobs is not None:
        return taken
    while request.forced and not request.is_full:
        for token in request.forced[: request.sampling.max_tokens - request.output_length]:
            if not request.matcher.accept(token):
                return taken  # a fault of the grammar's, which is this request's own error when the token is sampled
            request.append(token)
            request.forced = request.forced[1:]
            taken.append(token)
        update_forced(request)
    return taken
