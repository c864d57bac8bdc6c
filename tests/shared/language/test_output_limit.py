"""How many tokens an answer gets: what it asks for, what the context leaves, what the service allows."""

from __future__ import annotations

import pytest

from tessera.errors import ContextLengthError, InvalidRequestError
from tessera.language.generation import GenerationLimits, output_limit

CLAMPS = GenerationLimits(context_length=100, max_output_tokens=40, max_choices=1)
REFUSES = GenerationLimits(context_length=100, max_output_tokens=40, max_choices=1, clamps=False)


def limit(limits: GenerationLimits, requested: int | None, prompt: int) -> int:
    return output_limit(requested, prompt, limits, param="max_tokens", prompt_param="messages")


@pytest.mark.parametrize(
    ("requested", "prompt", "given"),
    [
        (None, 10, 40),
        (None, 80, 20),
        (7, 10, 7),
        (40, 60, 40),
        (41, 10, 40),
        (32_000, 10, 40),
        (30, 80, 20),
        (9, 99, 1),
    ],
)
def test_what_is_asked_for_is_clamped_to_what_there_can_be(requested, prompt, given):
    assert limit(CLAMPS, requested, prompt) == given


@pytest.mark.parametrize("limits", [CLAMPS, REFUSES])
def test_a_prompt_that_fills_the_context_is_refused_whatever_the_policy(limits):
    with pytest.raises(ContextLengthError) as refused:
        limit(limits, 5, 100)
    assert refused.value.param == "messages"


def test_a_service_that_refuses_names_its_limit_or_the_context():
    assert limit(REFUSES, 40, 60) == 40
    with pytest.raises(InvalidRequestError, match="at most 40"):
        limit(REFUSES, 41, 10)
    with pytest.raises(ContextLengthError, match="100 tokens"):
        limit(REFUSES, 30, 80)
