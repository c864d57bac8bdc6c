"""A request's parameters as the engine takes them: sampling, ends, bans, allow-lists, and prompts that are cut.

The meanings are vLLM's. Knows nothing about text that is generated: see `stops` for stop strings.
"""

from __future__ import annotations

import re
from typing import Any

from tessera.errors import InvalidRequestError
from tessera.language.generation import GenerationLimits
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import SamplingRequest
from tessera.wire.engine import Grammar, Sampling
from tessera.wire.vllm.sampling import SamplingOptions

_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def sampling_of(
    request: SamplingRequest,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    logprobs: int | None,
    requested: int | None,
    grammar: Grammar | None = None,
    prompt_logprobs: int | None = None,
    ends: list[int] | None = None,
) -> Sampling:
    """The engine's sampling parameters for a request, without `n` and stop strings.

    What the request leaves open is taken from the model's own `generation_config.json`, as vLLM does.

    Args:
        request: any request that samples.
        tokenizer: has the model's recommended parameters and stop tokens.
        max_tokens: most tokens of the answer.
        requested: the request's own limit; None when it has none.
        logprobs: how many likeliest tokens to report for each token; None for no scores.
        grammar: what the answer must follow; None for free text.
        prompt_logprobs: how many likeliest tokens to report for each token of the prompt; None for no scores.
        ends: further tokens that end this answer.

    Raises:
        InvalidRequestError: a key of `logit_bias` is no token id, `min_tokens` is more than the request's own limit,
            or a bad word has no tokens.
    """
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not _TOKEN_ID.fullmatch(key):
            raise InvalidRequestError(f"`logit_bias`: {key[:32]!r} is not a token id", param="logit_bias")
        bias[int(key)] = value
    return Sampling(
        max_tokens=max_tokens,
        temperature=_temperature(request, tokenizer),
        top_k=tokenizer.defaults.top_k if request.top_k is None else max(0, request.top_k),
        top_p=request.top_p or (tokenizer.defaults.top_p if request.top_p is None else 1.0),
        min_p=request.min_p,
        typical_p=request.typical_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=bias,
        seed=request.seed,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        **_token_options(request, tokenizer, requested=requested, ends=ends or []),
    )


def _temperature(request: SamplingRequest, tokenizer: Tokenizer) -> float:
    if request.top_p == 0:  # the smallest set of likely tokens is the likeliest one
        return 0.0
    return tokenizer.defaults.temperature if request.temperature is None else request.temperature


def _token_options(
    request: SamplingRequest, tokenizer: Tokenizer, *, requested: int | None, ends: list[int]
) -> dict[str, Any]:
    if requested is not None and request.min_tokens > requested:
        raise InvalidRequestError(
            f"`min_tokens` is {request.min_tokens}, more than the {requested} tokens that the answer may have",
            param="min_tokens",
        )
    own = [*(request.stop_token_ids or []), *ends]
    return {
        "stop_ids": [*([] if request.ignore_eos else tokenizer.stop_ids), *own],
        "min_tokens": request.min_tokens,
        "held_ids": sorted({*tokenizer.stop_ids, *own}) if request.min_tokens else [],
        "banned": bad_words(request.bad_words or [], tokenizer),
        "allowed_ids": request.allowed_token_ids,
    }


def bad_words(words: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The sequences of tokens that spell bad words at the beginning of a text and within it.

    As in vLLM, a word behind a space counts where the space makes another first token and no token more.

    Raises:
        InvalidRequestError: a word has no tokens.
    """
    sequences: list[list[int]] = []
    for word in dict.fromkeys(words):
        plain = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if not plain:
            raise InvalidRequestError(f"`bad_words`: {word!r} has no tokens", param="bad_words")
        sequences.append(plain)
        spaced = tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False)
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            sequences.append(spaced)
    return sequences


def truncated(
    token_ids: list[int], options: SamplingOptions, limits: GenerationLimits, *, requested: int | None
) -> list[int]:
    """A prompt's last tokens, as many as `truncate_prompt_tokens` says.

    Args:
        token_ids: of the whole prompt.
        options: of the request.
        limits: of the service.
        requested: most tokens of the answer, for which a prompt that is to fit leaves room; None: half of the context,
            or all that an answer may have.

    Raises:
        InvalidRequestError: no token would be left.
    """
    most = options.truncate_prompt_tokens
    if most is None:
        return token_ids
    if most == -1:
        room = min(limits.max_output_tokens, limits.context_length // 2) if requested is None else requested
        most = max(1, limits.context_length - max(1, room))
    if most == 0:
        param = "truncate_prompt_tokens"
        raise InvalidRequestError(f"`{param}` is 0, which leaves no prompt", param=param)
    return token_ids[-most:]
