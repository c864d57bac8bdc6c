"""Numbers in JSON answers end, although a model would go on with digits for ever."""

from __future__ import annotations

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tessera.sequence.grammar.backends import compiler_for
from tessera.sequence.grammar.digit_bound import MOST_DIGITS, MOST_EXPONENT_DIGITS, JsonPlace
from tessera.sequence.grammar.matcher import unpack_mask
from tessera.wire.engine import Grammar

NUMBERS = ["00", "123", "99999", " 7"]
STOP, SIZE = 256 + len(NUMBERS), 264


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tokenizer of bytes with a few tokens of several digits."""
    directory = tmp_path_factory.mktemp("digits")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: index for index, token in enumerate(alphabet)}
    for text in NUMBERS:
        words[text.replace(" ", "Ġ")] = len(words)
    fast = Tokenizer(models.BPE(words, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("</s>", special=True)])
    fast.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": STOP}))
    return directory


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def compiler(request, directory):
    return compiler_for(request.param, directory, SIZE)


def loving(compiler, schema, loved: str, *, kind: str = "json_schema", most: int = 400) -> str:
    """The answer of a greedy model that writes the first of `loved` that it may, and otherwise what it may."""
    matcher = compiler.compile(Grammar(kind=kind, source=json.dumps(schema), param="p"))()
    tokens, said = compiler._leading.tokens, b""
    wanted = {character: loved.encode().index(character) for character in loved.encode()}
    for _ in range(most):
        mask = torch.zeros(1, -(-SIZE // 32), dtype=torch.int32)
        matcher.fill_mask(mask, 0)
        possible = unpack_mask(mask, SIZE)[0].nonzero()[:, 0].tolist()
        assert possible, said

        def rank(token: int):
            text = tokens[token]
            if token == STOP:
                return (1, 0, 0)
            return (0 if text[:1] and text[0] in wanted else 2, wanted.get(text[0] if text else -1, 0), -len(text))

        token = min(possible, key=rank)
        assert matcher.accept(token)
        if token == STOP:
            return said.decode()
        said += tokens[token]
    raise AssertionError(f"no end: {said[:80]!r}")


@pytest.mark.parametrize("digit", ["9", "0", "1"])
def test_an_integer_without_bounds_ends(compiler, digit):
    text = loving(compiler, {"type": "integer"}, f"{digit}5-")
    assert isinstance(json.loads(text), int)
    assert len(re.sub(r"\D", "", text)) <= MOST_DIGITS


@pytest.mark.parametrize("loved", ["9.e", "1.0e-", "5e9", "-9.9E+"])
def test_a_number_ends_in_every_part(compiler, loved):
    text = loving(compiler, {"type": "number"}, loved)
    json.loads(text)
    found = re.fullmatch(r"-?(\d+)(?:\.(\d+))?(?:[eE][+-]?(\d+))?", text)
    assert found
    whole, fraction, exponent = (len(part or "") for part in found.groups())
    assert whole <= MOST_DIGITS
    assert fraction <= MOST_DIGITS
    assert exponent <= MOST_EXPONENT_DIGITS


def test_every_number_of_an_object_a_list_and_free_json_ends(compiler):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "number"}, "maxItems": 3}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    text = loving(compiler, schema, "9")
    assert max(len(run) for run in re.findall(r"\d+", text)) <= MOST_DIGITS
    assert len(json.loads(text)) == 2


def test_digits_of_strings_are_no_concern(compiler):
    schema = {"type": "string", "minLength": 60, "maxLength": 60}
    text = loving(compiler, schema, "9")
    assert json.loads(text) == "9" * 60


def test_digits_that_the_schema_itself_asks_for_are_written(compiler):
    long = 7 * 10**30 + 123
    # Both libraries write a constant that is no integer of 64 bits as a double.
    assert float(loving(compiler, {"const": long}, "9")) == float(long)


def test_a_tool_call_has_bounded_numbers(compiler):
    call = {
        "begin": '{"name": "f", "arguments": ',
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        | {"additionalProperties": False},
        "end": "}",
    }
    source = {"begin": "", "calls": [call], "separator": "\n", "end": "", "most": 1}
    text = loving(compiler, source, "9", kind="calls")
    assert len(str(json.loads(text)["arguments"]["n"])) <= MOST_DIGITS


def test_rejected_draft_tokens_leave_the_count_as_it_was(compiler):
    matcher = compiler.compile(Grammar(kind="json_schema", source='{"type": "integer"}', param="p"))()
    nine = next(index for index, text in enumerate(compiler._leading.tokens) if text == b"9")

    def may_go_on() -> bool:
        mask = torch.zeros(1, -(-SIZE // 32), dtype=torch.int32)
        matcher.fill_mask(mask, 0)
        return bool(unpack_mask(mask, SIZE)[0, nine])

    for _ in range(MOST_DIGITS):
        assert may_go_on()
        assert matcher.accept(nine)
    assert not may_go_on()
    matcher.rollback(2)
    assert may_go_on()
    assert matcher.accept(nine)
    assert matcher.accept(nine)
    assert not may_go_on()


@settings(max_examples=200, deadline=None)
@given(
    value=st.recursive(
        st.one_of(st.text(max_size=5), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
        max_leaves=6,
    ),
    ascii_only=st.booleans(),
)
def test_the_place_in_a_text_does_not_depend_on_how_it_was_cut(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    place = JsonPlace()
    for byte in text:
        place = place.behind(bytes([byte]))
    assert place == JsonPlace().behind(text)
    assert not place.in_string


@pytest.mark.parametrize("kind", ["json_schema", "calls"])
def test_a_model_that_loves_whitespace_ends_too(compiler, kind):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "t": {"type": "array", "items": {}}}}
    schema |= {"required": ["n", "t"], "additionalProperties": False}
    call = {"begin": '{"name": "f", "arguments": ', "schema": schema, "end": "}"}
    calls = {"begin": "", "calls": [call], "separator": "\n", "end": "", "most": 1}
    text = loving(compiler, schema if kind == "json_schema" else calls, " \n\t]9", kind=kind, most=1200)
    json.loads(text)
    assert max(len(run) for run in re.findall(r"\s*", text)) <= 20
