"""Model directories from strangers: whatever their JSON and headers hold, they load or are refused by name."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.errors import ModelLoadError
from tessera.hub.cards import read_card
from tessera.hub.gguf_header import check_gguf
from tessera.hub.video_geometry import video_geometry
from tessera.hub.weight_headers import MAX_HEADER_BYTES, safetensors_header
from tessera.tokenizer.chat_template import ChatTemplate
from tessera.tokenizer.files import read_json, stop_ids_of
from tessera.tokenizer.model_files import MAX_DEPTH, MAX_JSON_BYTES, read_as, read_list, read_object
from tessera.tokenizer.tokenizer import _defaults
from tessera_speech.text.planners import model_type_of

DEEP = "[" * 100_000 + "]" * 100_000
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 128}
FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "model_index.json", "chat_template.json")

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([math.nan, math.inf, -1, 0, 1, 2**63, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
"""Any value that JSON can have, NaN and huge numbers among them."""


def tensors(entries: dict, data: int = 0, length: int | None = None) -> bytes:
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(data)


@pytest.fixture
def directory(tmp_path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(
        tensors({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, 24)
    )
    return tmp_path


READERS: dict[str, Callable[[Path], object]] = {
    "card": read_card,
    "stop ids": stop_ids_of,
    "template": ChatTemplate.of,
    "sampling": _defaults,
    "geometry": lambda path: video_geometry(path, "WanPipeline"),
    "model type": model_type_of,
}


def refusal(read: Callable[[Path], object], path: Path) -> str | None:
    """The message with which a reader refuses a path; None if it reads it. Any other error fails the test."""
    try:
        read(path)
    except ModelLoadError as error:
        return error.message
    return None


def loads_or_is_refused(read: Callable[[Path], object], directory: Path) -> None:
    message = refusal(read, directory)
    assert message is None or str(directory) in message or "template" in message
    assert len(message or "") < 2000


def test_a_whole_directory_has_a_card(directory):
    card = read_card(directory)
    assert (card.family, card.parameters, card.context_length) == ("LlamaForCausalLM", 6, 128)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (DEEP, f"more than {MAX_DEPTH} levels"),
        ('{"a":' * 200 + "1" + "}" * 200, f"more than {MAX_DEPTH} levels"),
        ("[1, 2]", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
    ids=["deep array", "deep object", "array", "text", "null", "cut", "empty", "mark", "huge number"],
)
def test_files_that_are_no_plain_objects_are_refused_by_name(directory, name, content, words):
    (directory / name).write_text(content)
    with pytest.raises(ModelLoadError, match=words) as caught:
        read_card(directory)
    assert name in caught.value.message


def test_a_file_that_is_no_text_is_refused(directory):
    (directory / "config.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        read_card(directory)


def test_a_huge_file_is_refused_before_it_is_read(directory):
    with (directory / "config.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(ModelLoadError, match=r"config\.json has 67108865 bytes"):
        read_card(directory)


def test_files_in_the_folders_of_components_are_checked_too(directory):
    (directory / "vae").mkdir()
    (directory / "vae" / "config.json").write_text(DEEP)
    with pytest.raises(ModelLoadError, match=r"vae/config\.json has more than"):
        read_card(directory)


KEYS = [
    ("config.json", "architectures"),
    ("config.json", "model_type"),
    ("config.json", "text_config"),
    ("config.json", "vision_config"),
    ("config.json", "max_position_embeddings"),
    ("config.json", "sampling_rate"),
    ("config.json", "eos_token_id"),
    ("config.json", "id2label"),
    ("generation_config.json", "eos_token_id"),
    ("generation_config.json", "temperature"),
    ("generation_config.json", "top_p"),
    ("generation_config.json", "top_k"),
    ("tokenizer_config.json", "chat_template"),
    ("tokenizer_config.json", "bos_token"),
    ("chat_template.json", "chat_template"),
    ("model_index.json", "_class_name"),
    ("model_index.json", "boundary_ratio"),
    ("vae/config.json", "_class_name"),
    ("vae/config.json", "scale_factor_temporal"),
    ("transformer/config.json", "patch_size"),
    ("guider/guider_config.json", "guidance_scale"),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(KEYS), value=anything, empty=st.booleans())
def test_any_value_at_any_key_that_is_read_loads_or_is_refused(tmp_path_factory, place, value, empty):
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    name, key = place
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    before = {} if empty or name != "config.json" else CONFIG
    try:
        path.write_text(json.dumps({**before, key: value}))
    except ValueError:  # a number with more digits than Python writes
        return
    for read in READERS.values():
        loads_or_is_refused(read, directory)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=anything, name=st.sampled_from(FILES))
def test_any_json_in_any_file_loads_or_is_refused(tmp_path_factory, value, name):
    directory = tmp_path_factory.mktemp("model")
    try:
        (directory / name).write_text(json.dumps(value))
    except ValueError:
        return
    for read in READERS.values():
        loads_or_is_refused(read, directory)


def entry(**changes) -> dict:
    return {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | changes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 bytes"),
        (b"1234567", "has 7 bytes"),
        (tensors({"w": entry()}, 24, length=10_000), "claims 10000 bytes"),
        (tensors({"w": entry()}, 24, length=2**63), f"claims {2**63} bytes"),
        (tensors({"w": entry()}, 24, length=MAX_HEADER_BYTES + 1), "claims"),
        (tensors({"w": entry()}, 24, length=12), "not valid JSON"),
        (tensors(DEEP.encode()), "levels"),
        (tensors(b"[]"), "no JSON object"),
        (tensors({"w": 3}), "not described by an object"),
        (tensors({"w": {}}), "how large"),
        (tensors({"w": entry(shape=[-2, -3])}, 24), "whole number from 0"),
        (tensors({"w": entry(shape=[2.5, 3])}, 24), "whole number"),
        (tensors({"w": entry(shape=[True, 24])}, 24), "whole number"),
        (tensors({"w": entry(shape="23")}, 24), "how large"),
        (tensors({"w": entry(shape=[2**52, 2**52])}, 24), "damaged"),
        (tensors({"w": entry(shape=[2, 4])}, 24), "8 F32 in 24 bytes"),
        (tensors({"w": entry(data_offsets=[24, 0])}, 24), "lies from 24 to 0"),
        (tensors({"w": entry(data_offsets=[0])}, 24), "where"),
        (tensors({"w": entry(data_offsets=[-24, 0])}, 24), "offset"),
        (tensors({"w": entry()}, 20), "need 24 bytes, 20 are there"),
        (tensors({"w": entry(), "v": entry(data_offsets=[12, 36])}, 48), "overlap"),
        (tensors(b'{"w": {"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}', 4), "'dtype' twice"),
        (tensors(b'{"w": {}, "w": {}}'), "'w' twice"),
    ],
)
def test_headers_that_claim_what_cannot_be_are_refused_by_name(tmp_path, content, words):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=words) as caught:
        safetensors_header(path)
    assert "model.safetensors" in caught.value.message


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(
        st.sampled_from(["w", "v", "__metadata__"]),
        anything | st.fixed_dictionaries({"dtype": anything, "shape": anything, "data_offsets": anything}),
    ),
    data=st.integers(0, 64),
)
def test_any_header_is_read_or_refused(tmp_path_factory, header, data):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    try:
        path.write_bytes(tensors(header, data))
    except ValueError:
        return

    def check(path: Path) -> None:
        for one in safetensors_header(path).values():
            assert 0 <= one.data_offsets[0] <= one.data_offsets[1] <= data
            assert all(size >= 0 for size in one.shape)

    message = refusal(check, path)
    assert message is None or str(path) in message


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 200), flipped=st.integers(0, 199), bits=st.integers(1, 255))
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, cut, flipped, bits):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    data = bytearray(tensors({"w": entry(), "v": entry(data_offsets=[24, 48])}, 48))
    data[flipped % len(data)] ^= bits
    path.write_bytes(bytes(data[: len(data) - cut] if cut < len(data) else b""))
    message = refusal(safetensors_header, path)
    assert message is None or str(path) in message


def test_headers_equal_what_the_library_reads(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file(
        {"a": np.zeros((3, 5), np.float16), "b": np.zeros((0, 4), np.int64), "c": np.array(1, np.float32)},
        path,
        metadata={"format": "np"},
    )
    assert {name: (one.dtype, one.shape) for name, one in safetensors_header(path).items()} == {
        "a": ("F16", [3, 5]),
        "b": ("I64", [0, 4]),
        "c": ("F32", []),
    }


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({}, "no `weight_map`"),
        ({"weight_map": []}, "must be a JSON object"),
        ({"weight_map": {"w": "../../etc/passwd"}}, "no file beside it"),
        ({"weight_map": {"w": 3}}, "no file beside it"),
        ({"weight_map": {"w": "model-00002.safetensors"}}, "names 1 files that are not there"),
        ([], "must be a JSON object"),
    ],
)
def test_an_index_names_files_that_are_there(directory, index, words):
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=words) as caught:
        read_card(directory)
    assert "model.safetensors.index.json" in caught.value.message


def test_the_last_of_two_equal_keys_counts_as_libraries_have_it(directory):
    (directory / "config.json").write_text('{"model_type": "a", "model_type": "llama"}')
    assert read_object(directory / "config.json") == {"model_type": "llama"}


def test_each_kind_of_file_is_read_as_what_it_must_be(tmp_path):
    path = tmp_path / "modules.json"
    path.write_text("[1]")
    assert read_list(path) == [1]
    assert read_as(path, list[int]) == [1]
    assert read_json(tmp_path / "missing.json") == {}
    for read in (read_object, read_json, lambda one: read_as(one, dict[str, int])):
        with pytest.raises(ModelLoadError, match=r"modules\.json"):
            read(path)
    path.write_text("{}")
    with pytest.raises(ModelLoadError, match="must be a JSON array"):
        read_list(path)


def gguf(keys: int = 1, tensors: int = 1, *, value: bytes | None = None, tensor: bytes | None = None) -> bytes:
    """A GGUF file with a key and a tensor."""

    def name(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    value = name(b"general.name") + struct.pack("<I", 8) + name(b"tiny") if value is None else value
    tensor = name(b"w") + struct.pack("<IQQIQ", 2, 4, 2, 0, 0) if tensor is None else tensor
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + value + tensor + bytes(64)


def key(kind: int, data: bytes) -> bytes:
    return struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGML", "does not begin"),
        (gguf()[:10], "ends within its number of tensors"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (gguf(tensors=2**60), "too short"),
        (gguf(keys=2**62), "too short"),
        (gguf(value=struct.pack("<Q", 2**40)), "claims a text of"),
        (gguf(value=key(8, struct.pack("<Q", 10**6))), "ends within key 0"),
        (gguf(value=key(77, b"")), "unknown type 77"),
        (gguf(value=key(9, struct.pack("<IQ", 9, 1))), "an array itself"),
        (gguf(value=key(9, struct.pack("<IQ", 4, 2**61))), "too short"),
        (gguf(value=key(9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 2**50))), "claims a text"),
        (gguf(tensor=struct.pack("<Q", 1) + b"w" + struct.pack("<I", 2**31)), "dimensions"),
        (gguf(tensor=struct.pack("<Q", 1) + b"w" + struct.pack("<IQQIQ", 2, 2**60, 2**60, 0, 0)), "elements"),
        (gguf(tensor=struct.pack("<Q", 1) + b"w" + struct.pack("<IQQIQ", 2, 4, 2, 0, 10**9)), "at byte 1000000000"),
    ],
)
def test_gguf_headers_that_claim_what_cannot_be_are_refused_by_name(tmp_path, content, words):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=words) as caught:
        check_gguf(path)
    assert "model.gguf" in caught.value.message


def test_a_whole_gguf_file_passes(tmp_path):
    path = tmp_path / "model.gguf"
    arrays = key(9, struct.pack("<IQ", 4, 3) + bytes(12)) + key(
        9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2) + b"ab"
    )
    for content in (gguf(), gguf(keys=2, value=arrays)):
        path.write_bytes(content)
        check_gguf(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(4, 100), flipped=st.binary(min_size=1, max_size=8), cut=st.integers(0, 100))
def test_any_damage_to_a_gguf_header_passes_or_is_refused(tmp_path_factory, place, flipped, cut):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    data = bytearray(gguf())
    data[place : place + len(flipped)] = flipped
    path.write_bytes(bytes(data[: len(data) - cut]))
    message = refusal(check_gguf, path)
    assert message is None or str(path) in message


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["hidden_size", "num_attention_heads", "vocab_size", "rope_parameters", "layer_types", "model_type"]
    ),
    value=anything,
)
def test_any_value_that_transformers_reads_is_loaded_or_refused(tmp_path_factory, name, value):
    from tessera.models.loading import read_config

    directory = tmp_path_factory.mktemp("model")
    try:
        (directory / "config.json").write_text(json.dumps({**CONFIG, name: value}))
    except ValueError:
        return
    message = refusal(read_config, directory)
    assert message is None or str(directory) in message


def test_minus_one_means_none_as_some_published_models_have_it(directory):
    (directory / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": -1, "eos_token_id": -1}))
    (directory / "generation_config.json").write_text(json.dumps({"top_k": -1}))
    assert read_card(directory).context_length is None
    assert stop_ids_of(directory) == []
    assert _defaults(directory).top_k == 0
