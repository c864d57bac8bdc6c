"""Templates, stop strings and incremental text: what the HTTP side of a language model does with characters."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from tessera.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from tessera.language.stops import StopFinder
from tessera.language.together import run_bounded
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.literals import Literals
from tessera.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    """Every byte is a token, so every character beyond ASCII is several."""
    directory = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("<end>", special=True)])
    fast.save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 3], "temperature": 0.5}))
    return Tokenizer(directory)


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_pieces_of_a_text_add_up_to_it_and_no_piece_ends_within_a_character(byte_tokenizer, text):
    detokenizer = Detokenizer(byte_tokenizer, byte_tokenizer.encode("before ", add_special_tokens=False))
    pieces = [detokenizer.push(token) for token in byte_tokenizer.encode(text, add_special_tokens=False)]
    assert "".join(pieces) + detokenizer.flush() == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


def test_an_incomplete_last_character_is_shown_as_a_replacement(byte_tokenizer):
    tokens = byte_tokenizer.encode("a日", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(byte_tokenizer, [])
    assert "".join(detokenizer.push(token) for token in tokens) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_an_incomplete_character_of_the_prompt_does_not_shift_what_is_flushed(byte_tokenizer):
    first, second, third = byte_tokenizer.encode("日", add_special_tokens=False)
    detokenizer = Detokenizer(byte_tokenizer, [first])
    shown = "".join(
        detokenizer.push(token)
        for token in (second, third, *byte_tokenizer.encode("ab日", add_special_tokens=False)[:-1])
    )
    assert shown + detokenizer.flush() == "日ab\ufffd"


def test_the_bytes_of_tokens_add_up_to_the_text(byte_tokenizer):
    tokens = byte_tokenizer.encode("a 日é\n", add_special_tokens=False)
    assert b"".join(byte_tokenizer.token_bytes(token) for token in tokens).decode() == "a 日é\n"


def test_a_users_control_token_stays_text(byte_tokenizer):
    literals = Literals(byte_tokenizer)
    rendered = f"say: {literals.hide('a<end>b[0]')}<end>"
    ids = asyncio.run(byte_tokenizer.encode_pieces(literals.pieces(rendered), 100, param="messages"))
    assert byte_tokenizer.decode(ids) == "say: a<end>b[0]"
    assert [place for place, token in enumerate(ids) if token == 256] == [len(ids) - 1]


def test_a_text_without_control_tokens_is_encoded_in_one_piece(byte_tokenizer):
    literals = Literals(byte_tokenizer)
    assert literals.pieces(literals.hide("plain [1:2] text")) == [("plain [1:2] text", False)]


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(byte_tokenizer):
    with pytest.raises(ContextLengthError, match="1000 characters"):
        asyncio.run(byte_tokenizer.encode_within(["x" * 1000], 10, add_special_tokens=False, param="prompt"))


@pytest.mark.slow
def test_encoding_a_long_text_leaves_the_event_loop_running(byte_tokenizer):
    async def turns() -> int:
        encoding = asyncio.ensure_future(
            byte_tokenizer.encode_within(["word " * 200_000], 10**6, add_special_tokens=False, param="prompt")
        )
        taken = 0
        while not encoding.done():
            await asyncio.sleep(0.001)  # one turn of the loop, which is what is counted
            taken += 1
        assert len(encoding.result()[0]) == 1_000_000
        return taken

    assert asyncio.run(turns()) > 10


def test_the_first_failure_ends_the_other_prompts_and_few_run_at_once():
    running: list[int] = []
    most: list[int] = []

    async def call(number: int) -> int:
        running.append(number)
        most.append(len(running))
        try:
            await asyncio.sleep(0)  # lets the other calls begin
            if number == 5:
                raise ValueError("the sixth")
            await asyncio.sleep(30 if number > 5 else 0)  # the later ones are cancelled long before
            return number
        finally:
            running.remove(number)

    async def main() -> None:
        assert await run_bounded([partial(call, number) for number in range(5)], at_once=2) == [0, 1, 2, 3, 4]
        assert max(most) == 2
        with pytest.raises(ValueError, match="the sixth"):
            await run_bounded([partial(call, number) for number in range(50)], at_once=3)
        assert running == []

    asyncio.run(main())


def test_a_stop_token_of_number_zero_is_one(byte_tokenizer, tmp_path):
    byte_tokenizer.fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert Tokenizer(tmp_path).stop_ids == [0]


def test_special_tokens_are_not_shown_and_the_models_defaults_are_read(byte_tokenizer):
    detokenizer = Detokenizer(byte_tokenizer, [])
    assert detokenizer.push(256) == ""
    assert byte_tokenizer.stop_ids == [256, 3]
    assert byte_tokenizer.defaults.temperature == 0.5


def test_a_directory_without_a_tokenizer_is_said(tmp_path):
    with pytest.raises(ModelLoadError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer(tmp_path)


@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_are_found_wherever_the_text_is_cut(pieces, stops):
    finder = StopFinder(stops)
    shown = ""
    for piece in pieces:
        shown += finder.push(piece)
        if finder.found:
            break
    else:
        shown += finder.flush()
    text = "".join(pieces)
    # What a reader of the growing text would have cut: the first moment at which a stop string is complete.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, finder.found) == (text, False)
    else:
        assert finder.found
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown)
        assert finder.matched in stops
        assert text.startswith(finder.matched, len(shown))


def test_templates_render_as_transformers_renders_them(tmp_path):
    from transformers import PreTrainedTokenizerFast

    source = (
        "{{ bos_token }}{% for message in messages %}\n  {% if message.role == 'user' %}[{{ message.content | trim }}]"
        "{% else %}{{ message | tojson }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    fast = FastTokenizer(models.BPE({"a": 0, "<s>": 1}, []))
    reference = PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", chat_template=source)
    messages = [{"role": "user", "content": " hé "}, {"role": "assistant", "content": "b"}]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    (tmp_path / "chat_template.jinja").write_text(source)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    assert ChatTemplate.of(tmp_path).render(messages) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.at.all }}",
    ],
)
def test_a_template_that_misbehaves_is_refused_not_run(source):
    with pytest.raises(InvalidRequestError, match="does not take this conversation"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_a_load_error():
    with pytest.raises(ModelLoadError, match="broken"):
        ChatTemplate("{% for %}", {})
