"""Grammars: whatever they let through is what was asked for, with both libraries, and masks can be taken back."""

from __future__ import annotations

import json
import random
import re
import threading
import time

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.waiting import until
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tessera.errors import InvalidRequestError, OverloadedError, StartError
from tessera.sequence.grammar import backends
from tessera.sequence.grammar.backends import check_backend, compiler_for
from tessera.sequence.grammar.matcher import ThinkingMatcher, pack_mask, unpack_mask
from tessera.sequence.grammar.queue import GrammarQueue
from tessera.sequence.grammar.schemas import UnsupportedSchemaError, narrow_schema
from tessera.sequence.grammar.vocabulary import Vocabulary
from tessera.wire.engine import Grammar, Thinking

MERGED = ["ab", "the", '{"', '":', '",', " 1", "true", "]}", '"}']
SIZE = 256 + len(MERGED) + 6
THINK, UNTHINK, CALLS, STOP = 265, 266, 267, 268


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory):
    """A directory with a tokenizer of bytes, a few longer tokens and control tokens; two ids are padding."""
    directory = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = {character: index for index, character in enumerate(alphabet)}
    written = {byte: character for character, byte in _bytes_of(alphabet).items()}
    for word in MERGED:
        spelled["".join(written[byte] for byte in word.encode())] = len(spelled)
    fast = Tokenizer(models.BPE(spelled, []))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<think>", "</think>", "[TOOL_CALLS]", "</s>")]
    )
    fast.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": STOP}))
    return directory


def _bytes_of(alphabet):
    from tessera.tokenizer.files import byte_alphabet

    return byte_alphabet()


@pytest.fixture(scope="session", params=["xgrammar", "llguidance"])
def compiler(request, byte_model):
    return compiler_for(request.param, byte_model, SIZE)


@pytest.fixture(scope="session")
def words(byte_model):
    return Vocabulary.from_directory(byte_model, SIZE)


def grammar(kind: str, source, **more) -> Grammar:
    text = source if isinstance(source, str) else json.dumps(source)
    return Grammar(kind=kind, source=text, param="response_format", **more)


def choices(matcher) -> list[int]:
    mask = torch.zeros(1, -(-SIZE // 32), dtype=torch.int32)
    matcher.fill_mask(mask, 0)
    return unpack_mask(mask, SIZE)[0].nonzero()[:, 0].tolist()


def babble(matcher, tokens: list[bytes], seed: int, longest: int = 600) -> bytes | None:
    """Sample a text under a grammar from random logits; None if it did not end."""
    dice, said = random.Random(seed), b""
    for _ in range(longest):
        possible = choices(matcher)
        assert possible, f"stuck after {said!r}"
        if forced := matcher.forced():
            text = b"".join(tokens[token] for token in forced)
            assert text
            assert STOP not in forced
            # Whatever may come next begins so, or is the beginning of it.
            assert all(text.startswith(tokens[token]) or tokens[token].startswith(text) for token in possible)
            if dice.random() < 0.5:
                assert all(matcher.accept(token) for token in forced)
                said += text
                continue
        # Ends are likelier than their share, so that most texts do end.
        weights = [
            1 if token == STOP or tokens[token][:1] in b'"}],:' else 0.3 if tokens[token] < b"\x80" else 0.01
            for token in possible
        ]
        token = dice.choices(possible, weights)[0]
        assert matcher.accept(token)
        if token == STOP:
            assert matcher.ended
            assert choices(matcher) == [] or choices(matcher) == [STOP]
            return said
        said += tokens[token]
    return None


def leaves() -> st.SearchStrategy:
    return st.one_of(
        st.just({"type": "null"}),
        st.just({"type": "boolean"}),
        st.builds(
            lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
            st.integers(-50, 50),
            st.integers(0, 200),
        ),
        st.just({"type": "number"}),
        st.builds(
            lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
            st.integers(0, 3),
            st.integers(0, 5),
        ),
        st.sampled_from(["^[a-c]{2,4}$", "^(x|yz)+$", r"^\d{3}-\d{2}$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern}
        ),
        st.lists(st.sampled_from(["a", "b\n", "é", 1, 2.5, None, True, [], {"k": [1]}]), min_size=1, max_size=4).map(
            lambda values: {"enum": values}
        ),
        st.sampled_from([{"const": 'quo"te'}, {"type": ["string", "null"]}, {"format": "date", "type": "string"}]),
    )


def composed(inner: st.SearchStrategy) -> st.SearchStrategy:
    names = st.sampled_from(["a", "b c", "ü", 'q"', "d"])
    objects = st.builds(
        lambda properties, drop: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[drop:],
            "additionalProperties": False,
        },
        st.dictionaries(names, inner, max_size=3),
        st.integers(0, 2),
    )
    arrays = st.builds(
        lambda items, low, span: {"type": "array", "items": items, "minItems": low, "maxItems": low + span},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    return st.one_of(objects, arrays, st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}))


SCHEMAS = st.recursive(leaves(), composed, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 2**16))
def test_what_a_schema_lets_through_satisfies_it(compiler, words, schema, seed):
    make = compiler.compile(grammar("json_schema", schema))
    for turn in range(2):
        said = babble(make(), words.tokens, seed + turn)
        if said is not None:
            jsonschema.validate(json.loads(said), schema)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "z"]},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"minimum": 3},
        {"type": "string", "enum": ["a", 1]},
        {"allOf": [{"type": "integer"}], "title": "beside"},
        {"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "description": "beside"},
        {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "string", "minLength": 2},
        {"type": "string", "format": "password"},
    ],
)
def test_schemas_as_people_write_them_are_held(compiler, words, schema):
    make = compiler.compile(grammar("json_schema", schema))
    ended = [said for seed in range(30) if (said := babble(make(), words.tokens, seed)) is not None]
    assert ended
    for said in ended:
        jsonschema.validate(json.loads(said), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "integer", "multipleOf": 3},
        {"not": {"type": "string"}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"$ref": "https://example.com/schema.json"},
        {"type": "object", "minProperties": 1},
    ],
)
def test_what_xgrammar_would_pass_over_is_not_given_to_it(schema):
    with pytest.raises(UnsupportedSchemaError, match="not supported"):
        narrow_schema(schema, "response_format")


def test_auto_takes_the_other_library_for_what_the_first_does_not_hold(byte_model, words):
    make = compiler_for("auto", byte_model, SIZE).compile(
        grammar("json_schema", {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 99})
    )
    said = {int(babble(make(), words.tokens, seed)) for seed in range(20)}
    assert len(said) > 1
    assert all(number % 7 == 0 for number in said)


def text_of(length: int) -> dict:
    return {"type": "string", "maxLength": length}


HOSTILE = [
    ("json_schema", {"type": "object", "properties": {f"k{n}": text_of(99_999 - n) for n in range(60)}}),
    ("json_schema", {"type": "string", "minLength": 100_000}),
    (
        "json_schema",
        {
            "type": "object",
            "properties": {f"k{n}": {"type": "integer"} for n in range(300)},
            "minProperties": 100,
            "additionalProperties": False,
        },
    ),
    ("json_schema", {"type": "string", "pattern": "^(((a{1,1000}){1,1000}){1,1000})$"}),
    ("json_schema", {"patternProperties": {"(((a{1,1000}){1,1000}){1,1000})": {}}}),
    ("regex", "(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
    ("regex", "(" + "|".join(f"a{{{n}}}b" for n in range(1, 900)) + ")*c"),
    ("regex", "(.*x.{400}){20}"),
    ("ebnf", 'root ::= (("a"{1,10000}){1,10000}){1,10000}'),
    ("ebnf", 'root ::= a a a a a a "x"\na ::= [a-z ]* | a a'),
    ("ebnf", 'root ::= root root | "a" | ""'),
]


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.timeout(60)
def test_no_grammar_keeps_a_core_busy(byte_model, words, kind, source):
    """Each of these took xgrammar minutes, or would; `auto` refuses or serves it."""
    try:
        make = compiler_for("auto", byte_model, SIZE).compile(grammar(kind, source))
    except InvalidRequestError:
        return
    babble(make(), words.tokens, 1, longest=100)


@pytest.mark.parametrize("pattern", ["[ab]{2,5}", r"\d+(\.\d+)?", "(the|ab)*x", "[é-ü]{3}", "", "a?b?"])
def test_what_a_regex_lets_through_matches_it(compiler, words, pattern):
    make = compiler.compile(grammar("regex", pattern))
    for seed in range(20):
        said = babble(make(), words.tokens, seed)
        assert said is None or re.fullmatch(pattern, said.decode())


def test_choices_and_grammars(compiler, words):
    texts = ["the", "then", 'qu"o\\te', "é\n"]
    make = compiler.compile(grammar("choice", texts))
    assert {"the", "then"} < {babble(make(), words.tokens, seed).decode() for seed in range(60)} <= set(texts)
    for text in texts:
        matcher = make()
        assert all(matcher.accept(words.tokens.index(bytes([byte]))) for byte in text.encode())
        assert STOP in choices(matcher)
    source = 'root ::= "a" tail\ntail ::= "b" | "c" root'
    make = compiler.compile(grammar("ebnf", source))
    for seed in range(10):
        assert re.fullmatch(r"a(ca)*b", babble(make(), words.tokens, seed).decode())


def calls(most=None) -> Grammar:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    source = {
        "begin": "[TOOL_CALLS] [",
        "calls": [
            {"begin": '{"name": "one", "arguments": ', "schema": schema, "end": "}"},
            {"begin": '{"name": "two", "arguments": ', "schema": {"type": "object", "properties": {}}, "end": "}"},
        ],
        "separator": ", ",
        "end": "]",
        "most": most,
    }
    return grammar("calls", source, markers=["[TOOL_CALLS]"])


def test_calls_are_calls(compiler, words):
    shown = words.with_markers(["[TOOL_CALLS]"])
    counts = set()
    for seed in range(20):
        said = babble(compiler.compile(calls())(), shown, seed)
        if said is None:
            continue
        assert said.startswith(b"[TOOL_CALLS] [")
        found = json.loads(said.removeprefix(b"[TOOL_CALLS] "))
        counts.add(len(found))
        assert all(call["name"] in {"one", "two"} for call in found)
        assert all(isinstance(call["arguments"]["x"], int) for call in found if call["name"] == "one")
    assert len(counts) > 1
    single = [babble(compiler.compile(calls(most=1))(), shown, seed) for seed in range(10)]
    assert {len(json.loads(said.removeprefix(b"[TOOL_CALLS] "))) for said in single if said} == {1}


def calls_or_json(schema, begin="") -> Grammar:
    source = json.loads(calls().source) | {"answer": {"begin": begin, "schema": schema, "param": "response_format"}}
    text = json.dumps(source)
    return Grammar(kind="calls_or_json", source=text, param="tools", markers=["[TOOL_CALLS]", "<think>"])


@pytest.mark.parametrize("begin", ["", "<think>said:"])
def test_calls_or_json_are_one_of_the_two(compiler, words, begin):
    shown = words.with_markers(["[TOOL_CALLS]", "<think>"])
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}
    make = compiler.compile(calls_or_json(schema, begin))
    kinds = set()
    for seed in range(30):
        said = babble(make(), shown, seed)
        if said is None:
            continue
        called = said.startswith(b"[TOOL_CALLS] [")
        kinds.add(called)
        if called:
            assert {call["name"] for call in json.loads(said.removeprefix(b"[TOOL_CALLS] "))} <= {"one", "two"}
        else:
            jsonschema.validate(json.loads(said.removeprefix(begin.encode())), schema)
    assert kinds == {True, False}


def test_an_error_names_the_part_of_calls_or_json_that_is_wrong(compiler):
    grammars = GrammarQueue(lambda: compiler, vocabulary=SIZE, stop_ids=[STOP], timeout_s=20)
    grammars.start("answer", calls_or_json({"$ref": "#/$defs/no"}))
    assert compiled(grammars)["answer"].param == "response_format"
    broken = calls_or_json({}).source.replace('"type": "integer"', '"$ref": "#/$defs/no"')
    grammars.start("tools", Grammar(kind="calls_or_json", source=broken, param="tools"))
    assert compiled(grammars)["tools"].param == "tools"


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("size", [SIZE, 288, 289])
def test_masks_fit_vocabularies_of_any_size(byte_model, backend, size):
    matcher = compiler_for(backend, byte_model, size).compile(grammar("choice", ["ab"]))()
    mask = torch.full((2, -(-size // 32)), -1, dtype=torch.int32)
    matcher.fill_mask(mask, 1)
    assert 0 < int(unpack_mask(mask, size)[1].sum()) < 10
    assert unpack_mask(mask, size)[0].all()


def test_a_control_token_is_no_text(compiler):
    make = compiler.compile(grammar("json_schema", {"type": "string"}))
    matcher = make()
    assert matcher.accept(choices(matcher)[0])
    assert not {THINK, UNTHINK, CALLS, STOP, SIZE - 1} & set(choices(matcher))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 1}),
        ("json_schema", {"enum": []}),
        ("json_schema", False),
        ("json_schema", {"type": "nonsense"}),
        ("json_schema", {"$ref": "#/$defs/missing"}),
        ("json_schema", {"$ref": "#"}),
        ("regex", "("),
        ("regex", r"(a)\1"),
        ("regex", "(" * 20_000 + "a" + ")" * 20_000),
        ("ebnf", "root ::= missing"),
        ("ebnf", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ],
    ids=range(11),
)
def test_a_grammar_that_cannot_be_is_refused_by_name(compiler, kind, source):
    with pytest.raises(InvalidRequestError, match="response_format") as refused:
        compiler.compile(grammar(kind, source))
    assert refused.value.param == "response_format"
    assert ".cc" not in refused.value.message


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**16), thinks=st.booleans())
def test_tokens_that_are_taken_back_leave_no_trace(compiler, seed, thinks):
    """Against a matcher that never went wrong, at every step and for any number of tokens."""
    thinking = Thinking(begin=THINK, end=[UNTHINK], open=False) if thinks else None
    make = compiler.compile(grammar("json_schema", {"type": "array", "items": {"type": "integer"}, "maxItems": 3}))

    def fresh(path: list[int]):
        matcher = make() if thinking is None else ThinkingMatcher(make(), thinking, [STOP], SIZE)
        for token in path:
            assert matcher.accept(token)
        return matcher

    dice, path = random.Random(seed), []
    matcher = fresh([])
    for _ in range(25):
        if path and dice.random() < 0.4:
            count = dice.randint(1, len(path))
            matcher.rollback(count)
            del path[len(path) - count :]
        elif not matcher.ended:
            options = choices(matcher)
            token = UNTHINK if UNTHINK in options and dice.random() < 0.5 else dice.choice(options)
            refused = next((t for t in range(SIZE) if t not in options), None)
            assert refused is None or not matcher.accept(refused)
            assert matcher.accept(token)
            path.append(token)
        other = fresh(path)
        assert matcher.ended == other.ended
        if not matcher.ended:
            assert choices(matcher) == choices(other)
            assert matcher.forced() == other.forced()


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_forced_text_is_written_as_the_tokenizer_writes_it(tmp_path, backend):
    """Not letter by letter, though the grammar would take that too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = {token: index for index, token in enumerate([*alphabet, "nu", "nul", "null"])}
    fast = Tokenizer(models.BPE(spelled, [("n", "u"), ("nu", "l"), ("nul", "l")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken("</s>", special=True)])
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 259}))
    whole = [spelled[token] for token in ("[", "null", ",", "null", ",")]
    matcher = compiler_for(backend, tmp_path, 260).compile(grammar("choice", ["[null,null,1", "[null,null,2"]))()
    forced = matcher.forced()
    assert forced in (whole, whole[:-1])  # the last one could be the beginning of a longer one
    assert all(matcher.accept(token) for token in forced)
    assert matcher.forced() == []
    words = Vocabulary.from_directory(tmp_path, 260)
    assert words.tokenize("[null,null,") == whole
    assert words.tokenize("null\u00e9") == fast.encode("null\u00e9").ids
    assert Vocabulary.from_directory(tmp_path, 257).tokenize("null") == [], "the model does not know the token"


def test_text_that_the_tokenizer_changes_is_written_by_sampling(byte_model, tmp_path):
    fast = Tokenizer.from_file(str(byte_model / "tokenizer.json"))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    fast.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text((byte_model / "config.json").read_text())
    assert Vocabulary.from_directory(tmp_path, SIZE).tokenize("abc") == []
    matcher = compiler_for("xgrammar", tmp_path, SIZE).compile(grammar("choice", ["abc"]))()
    assert matcher.forced() == []


def test_a_model_that_thinks_is_free_until_it_has_thought(compiler, words):
    make = compiler.compile(grammar("choice", ["ab"]))
    may = ThinkingMatcher(make(), Thinking(begin=THINK, end=[UNTHINK], open=False), [STOP], SIZE)
    first = choices(may)
    assert THINK in first
    assert STOP not in first
    assert all(token == THINK or b"ab".startswith(words.tokens[token]) for token in first)
    assert may.accept(THINK)
    assert len(choices(may)) == SIZE - 1  # anything but the end
    assert may.forced() == []
    assert may.accept(100)
    assert may.accept(UNTHINK)
    assert babble(may, words.tokens, 1) == b"ab"
    opened = ThinkingMatcher(make(), Thinking(begin=THINK, end=[UNTHINK, 100], open=True), [STOP], SIZE)
    for token in (100, UNTHINK, UNTHINK, 100):
        assert len(choices(opened)) == SIZE - 1
        assert opened.accept(token)
    assert babble(opened, words.tokens, 1) == b"ab"


@given(bits=st.lists(st.booleans(), min_size=1, max_size=100))
def test_masks_are_bits(bits):
    padded = [*bits, *[False] * (-len(bits) % 32)]
    words = pack_mask(torch.tensor([padded], dtype=torch.int64))
    assert unpack_mask(words, len(bits))[0].tolist() == bits
    assert unpack_mask(words, len(padded) + 5)[0].tolist() == [*padded, *[False] * 5]


class Slow:
    """A compiler that waits for a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.count = 0

    def compile(self, grammar: Grammar):
        self.count += 1
        if grammar.source == "wrong":
            raise InvalidRequestError("`regex` is wrong", param="regex")
        self.gate.wait(10)
        return object


def compiled(grammars: GrammarQueue) -> dict:
    return dict(until(lambda: grammars.take_ready(wait_s=0.05), 5, what="a grammar"))


def test_requests_of_one_grammar_share_its_compilation_and_can_leave():
    slow = Slow()
    grammars = GrammarQueue(lambda: slow, vocabulary=SIZE, stop_ids=[STOP], timeout_s=5)
    for name in ("a", "b", "left"):
        grammars.start(name, grammar("regex", "x"))
    grammars.cancel("left")
    assert grammars.take_ready() == []
    slow.gate.set()
    assert compiled(grammars).keys() == {"a", "b"}
    grammars.start("c", grammar("regex", "x"))
    assert compiled(grammars).keys() == {"c"}
    assert slow.count == 1
    grammars.start("d", grammar("regex", "wrong"))
    assert isinstance(compiled(grammars)["d"], InvalidRequestError)


def test_a_grammar_that_takes_too_long_is_given_up_and_holds_nobody_else_for_ever():
    slow = Slow()
    grammars = GrammarQueue(lambda: slow, vocabulary=SIZE, stop_ids=[STOP], timeout_s=0.2)
    for name in ("a", "b"):
        grammars.start(name, grammar("regex", name))
    until(lambda: slow.count == 2, what="both compilations to begin")
    grammars.start("c", grammar("regex", "c"))
    found: dict = {}
    while len(found) < 3:
        found |= compiled(grammars)
    assert isinstance(found["a"], InvalidRequestError)
    assert "longer than 0.2 s" in found["a"].message
    assert isinstance(found["c"], OverloadedError)
    slow.gate.set()
    time.sleep(0.1)  # the compilations that were given up end meanwhile, which nobody is told
    grammars.start("d", grammar("regex", "a"))
    assert not isinstance(compiled(grammars)["d"], Exception)


def test_the_time_begins_when_there_is_a_compiler():
    slow = Slow()
    slow.gate.set()

    def make() -> Slow:
        time.sleep(0.6)  # twice the time that a grammar has
        return slow

    grammars = GrammarQueue(make, vocabulary=SIZE, stop_ids=[STOP], timeout_s=0.3)
    grammars.start("a", grammar("regex", "a"))
    assert not isinstance(compiled(grammars)["a"], Exception)


def test_a_model_without_an_end_has_no_grammars():
    grammars = GrammarQueue(Slow, vocabulary=SIZE, stop_ids=[], timeout_s=1)
    with pytest.raises(InvalidRequestError, match="no token that ends"):
        grammars.start("a", grammar("regex", "x"))


def test_without_xgrammar_the_other_library_compiles_everything(byte_model, monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda _: None)
    made = compiler_for("auto", byte_model, SIZE)
    assert type(made.inner).__name__ == "LlguidanceCompiler"
    check_backend("auto")
    with pytest.raises(StartError, match=r'pip install "tessera\[gpu\]"'):
        check_backend("xgrammar")


def test_a_grammar_that_goes_on_for_ever_without_a_choice_holds_nothing_up(compiler):
    matcher = compiler.compile(grammar("ebnf", 'root ::= "a" root'))()
    began = time.monotonic()
    matcher.forced()
    assert time.monotonic() - began < 5
