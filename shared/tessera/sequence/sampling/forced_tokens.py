"""Forced tokens: where a grammar leaves no choice, a request takes tokens without sampling, and one step computes them.

Examples are a name in a JSON schema and the frame of a tool call. They are written as the tokenizer writes them, where
sampling could split them as no text that the model has seen is split. If the client wants log-probabilities, every
token is sampled so that it has one; the forced token is then all that the mask allows, so the text is the same. A
client that bans tokens has every token sampled, too: a forced one could be banned.
"""

from __future__ import annotations

from tessera.sequence.request import SequenceRequest


def update_forced(request: SequenceRequest) -> None:
    """Ask a request's grammar which tokens are forced next, unless that is known."""
    free = request.constraints is None or not request.constraints.few
    if request.matcher is not None and free and not request.forced:
        request.forced = request.matcher.forced()


def append_forced(request: SequenceRequest) -> list[int]:
    """Append the tokens that are forced behind the token that a request has just got.

    Args:
        request: Its grammar has accepted that token and does not end with it.

    Returns:
        The appended tokens; at most as many as the request may have.
    """
    assert request.sampling is not None
    request.forced = request.forced[1:]
    if request.matcher is None:
        return []
    appended: list[int] = []
    update_forced(request)
    if request.sampling.logprobs is not None:
        return appended
    while request.forced and not request.is_full:
        for token in request.forced[: request.sampling.max_tokens - request.output_length]:
            if not request.matcher.accept(token):
                return appended  # a fault of the grammar's; the request fails when this token is sampled
            request.append(token)
            request.forced = request.forced[1:]
            appended.append(token)
        update_forced(request)
    return appended
