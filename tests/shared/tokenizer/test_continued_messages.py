"""Prompts that end within the last message are those that Transformers renders."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tessera.errors import InvalidRequestError
from tessera.tokenizer.chat_template import ChatTemplate

TEMPLATES = {
    "as it is": "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</s>\n{% endfor %}",
    "parts": (
        "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}</s>{% endfor %}"
    ),
}
LAST = ["so it", "so it ", " so\nit \n", "Hello"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("role", ["assistant", "user"])
def test_the_text_is_that_of_transformers(name, last, role):
    content = [{"type": "text", "text": last}] if name == "parts" else last
    messages = [{"role": "user", "content": "Hello"}, {"role": role, "content": content}]
    (expected,), _ = render_jinja_template(
        [messages], chat_template=TEMPLATES[name], continue_final_message=True, add_generation_prompt=False
    )
    found = ChatTemplate(TEMPLATES[name], {}).render(messages, opens_turn=False, continues=True)
    assert found == expected


@pytest.mark.parametrize(
    ("template", "content"), [("{{ messages[0]['content'] }}", "x"), (TEMPLATES["as it is"], None)]
)
def test_a_message_that_cannot_be_continued_is_refused_by_name(template, content):
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": content}]
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(template, {}).render(messages, opens_turn=False, continues=True)
    assert caught.value.param == "continue_final_message"
