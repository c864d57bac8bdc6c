"""Templates of clients: the same text as a model's template gives, and no way to hold or fill the machine."""

from __future__ import annotations

import time

import pytest

from tessera.errors import InvalidRequestError
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.request_template import RequestTemplate

MESSAGES = [{"role": "user", "content": "Hé <b>"}, {"role": "assistant", "content": "so "}]
SOURCE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if thinking %}<think>{% endif %}{% endif %}"
)
TOKENS = {"bos_token": "<s>"}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"opens_turn": False}, {"opens_turn": False, "continues": True}])
def test_a_template_of_a_client_writes_what_a_template_of_a_model_does(flags):
    own, theirs = ChatTemplate(SOURCE, TOKENS), RequestTemplate(SOURCE, TOKENS)
    assert theirs.variables == own.variables
    assert (theirs.text_arguments, theirs.null_content) == (own.text_arguments, own.null_content)
    variables = {"thinking": True}
    assert theirs.render(MESSAGES, variables=variables, **flags) == own.render(MESSAGES, variables=variables, **flags)


HOSTILE = {
    "a loop without end": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power that is folded when compiled": "{{ 9 ** (9 ** 9) }}",
    "a text that doubles": "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x * 2 %}{% endfor %}",
    "a filter that fills": "{{ 'a' | center(9999999999) }}",
    "a format that fills": "{{ '%09999999999d' | format(1) }}",
    "a recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a nest too deep to parse": "{% if x %}" * 5000,
    "no template": "{% for %}",
    "a way to Python's objects": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a way to change its input": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_by_name_in_good_time(name):
    began = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        RequestTemplate(HOSTILE[name], TOKENS).render(MESSAGES)
    assert caught.value.param in {"chat_template", "messages"}
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_template_sees_nothing_of_the_servers_environment(monkeypatch):
    monkeypatch.setenv("TESSERA_GATEWAY__KEYS", "secret")
    source = "{{ cycler.__init__.__globals__.os.environ }}"
    with pytest.raises(InvalidRequestError):
        RequestTemplate(source, TOKENS).render(MESSAGES)
