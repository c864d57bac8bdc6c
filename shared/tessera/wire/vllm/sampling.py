"""Parameters of sampling and of answers that vLLM's and SGLang's users send, as the base of requests that take them.

Names, defaults and meanings are vLLM's (`SamplingParams`, 0.12 and later) unless a field says otherwise; those that
only chat completions or only completions have stand with these. Does not know what a prompt is.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from tessera.wire.hints import Hints
from tessera.wire.tools import MOST_PATTERN, MOST_SOURCE

_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Word = Annotated[str, Meta(min_length=1, max_length=256)]
_Choice = Annotated[str, Meta(min_length=1, max_length=1024)]
_Pattern = Annotated[str, Meta(max_length=MOST_PATTERN)]
Source = Annotated[str, Meta(max_length=MOST_SOURCE)]
Truncation = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class SamplingOptions(Hints, frozen=True, kw_only=True):
    """What chat completions and completions share beside OpenAI's parameters."""

    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Tokens before which nothing ends the answer: no end token, none of `stop_token_ids`, no stop string."""
    stop_token_ids: Annotated[list[_Token], Meta(max_length=256)] | None = None
    """Tokens that end the answer, beside those of the model. They are no part of its text."""
    bad_words: Annotated[list[_Word], Meta(max_length=256)] | None = None
    """Texts whose tokens the answer must not have in this order, each also with a space before it. The same letters
    in other tokens are not found, as in vLLM."""
    allowed_token_ids: Annotated[list[_Token], Meta(min_length=1, max_length=65_536)] | None = None
    """The only tokens that may be sampled. Add the end token, or the answer goes on to its limit."""
    include_stop_str_in_output: bool = False
    """Whether the stop string, or the text of the stop token, ends the text."""
    skip_special_tokens: bool = True
    """Whether control tokens are left out of the text."""
    spaces_between_special_tokens: bool = True
    """Without effect: no tokenizer here puts spaces between control tokens."""
    truncate_prompt_tokens: Truncation | None = None
    """Keeps the last tokens of the prompt, as many as this; -1: as many as fit into the context with the answer."""
    return_token_ids: bool | None = None
    """Whether answers have `prompt_token_ids` and `token_ids`."""
    return_tokens_as_token_ids: bool | None = None
    """Whether log-probabilities name tokens as `token_id:7` instead of by their text."""
    request_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")] | None = None
    """Ends the `id` of the answer, instead of a random one."""
    # SGLang's names of `structured_outputs`
    regex: _Pattern | None = None
    ebnf: Source | None = None
    json_schema: dict[str, Any] | str | None = None
    # vLLM's names of `structured_outputs` before its version 0.12
    guided_json: dict[str, Any] | str | None = None
    guided_regex: _Pattern | None = None
    guided_choice: Annotated[list[_Choice], Meta(min_length=1, max_length=1024)] | None = None
    guided_grammar: Source | None = None
