"""A Whisper of CTranslate2 becomes the directory of Transformers that it was made from; damaged files are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import WhisperForConditionalGeneration

from tessera.errors import ModelLoadError
from tessera.hub import ctranslate2_directory, store
from tessera.hub.cards import read_card
from tessera.models.ctranslate2.variables import read_variables
from tessera.models.ctranslate2.whisper import convert_whisper
from tessera_speech.starter import random_whisper
from tessera_speech.transcription.transcript_tokenizer import TranscriptTokenizer

TYPES = {np.dtype("f4"): 0, np.dtype("i1"): 1, np.dtype("i2"): 2, np.dtype("i4"): 3, np.dtype("f2"): 4}


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, array: np.ndarray, *, bfloat16: bool = False) -> bytes:
    """The bytes of one variable, as `ModelSpec._serialize` of CTranslate2 writes them."""
    kind = 5 if bfloat16 else TYPES[array.dtype]
    head = text(name) + struct.pack("<B", array.ndim) + b"".join(struct.pack("<I", size) for size in array.shape)
    return head + struct.pack("<BI", kind, array.nbytes) + array.tobytes()


def model_file(variables: list[bytes], *, version: int = 6, name: str = "WhisperSpec", aliases: bytes = b"") -> bytes:
    count = struct.pack("<I", len(variables))
    ends = struct.pack("<I", 1 if aliases else 0) + aliases
    return struct.pack("<I", version) + text(name) + struct.pack("<I", 3) + count + b"".join(variables) + ends


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original")
    random_whisper.write(directory, width=64, layers=2)
    return directory


def arrays_of(directory: Path) -> dict[str, np.ndarray]:
    """The model's arrays under CTranslate2's names, as its converter lays them out."""
    state = load_file(directory / "model.safetensors")
    found: dict[str, np.ndarray] = {"encoder/num_heads": np.array(1, "i2"), "decoder/num_heads": np.array(1, "i2")}

    def put(theirs: str, ours: str) -> None:
        parts = [state[f"{ours.rpartition('.')[0]}.{part}.weight"] for part in ours.rpartition(".")[2].split("+")]
        biases = [
            state.get(f"{ours.rpartition('.')[0]}.{part}.bias", np.zeros(len(weight), "f4"))
            for part, weight in zip(ours.rpartition(".")[2].split("+"), parts, strict=True)
        ]
        is_norm = "norm" in theirs
        found[f"{theirs}/{'gamma' if is_norm else 'weight'}"] = np.concatenate(parts)
        found[f"{theirs}/{'beta' if is_norm else 'bias'}"] = np.concatenate(biases)

    for side in ("encoder", "decoder"):
        found[f"{side}/position_encodings/encodings"] = state[f"model.{side}.embed_positions.weight"]
        put(f"{side}/layer_norm", f"model.{side}.layer_norm")
        for layer in range(2):
            theirs, ours = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            put(f"{theirs}/self_attention/layer_norm", f"{ours}.self_attn_layer_norm")
            put(f"{theirs}/self_attention/linear_0", f"{ours}.self_attn.q_proj+k_proj+v_proj")
            put(f"{theirs}/self_attention/linear_1", f"{ours}.self_attn.out_proj")
            put(f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
            put(f"{theirs}/ffn/linear_0", f"{ours}.fc1")
            put(f"{theirs}/ffn/linear_1", f"{ours}.fc2")
            if side == "decoder":
                put(f"{theirs}/attention/layer_norm", f"{ours}.encoder_attn_layer_norm")
                put(f"{theirs}/attention/linear_0", f"{ours}.encoder_attn.q_proj")
                put(f"{theirs}/attention/linear_1", f"{ours}.encoder_attn.k_proj+v_proj")
                put(f"{theirs}/attention/linear_2", f"{ours}.encoder_attn.out_proj")
    put("encoder/conv1", "model.encoder.conv1")
    put("encoder/conv2", "model.encoder.conv2")
    found["decoder/embeddings/weight"] = state["model.decoder.embed_tokens.weight"]
    return found


def stored(arrays: dict[str, np.ndarray], scheme: str) -> list[bytes]:
    """Variables as CTranslate2 stores them in one of its types."""
    written = []
    for name, array in arrays.items():
        if array.dtype != np.float32:
            written.append(variable(name, array))
        elif scheme == "float16":
            written.append(variable(name, array.astype("f2")))
        elif scheme == "bfloat16":
            bits = torch.from_numpy(array).to(torch.bfloat16).view(torch.int16).numpy().view("u2")
            written.append(variable(name, bits, bfloat16=True))
        elif scheme == "int8" and array.ndim == 2 and name.endswith("/weight"):
            largest = np.abs(array).max(axis=1)
            scales = (127 / np.where(largest > 0, largest, 127)).astype("f4")
            written.append(variable(name, np.rint(array * scales[:, None]).astype("i1")))
            written.append(variable(f"{name}_scale", scales))
        else:
            written.append(variable(name, array))
    return written


def packed(original: Path, folder: Path, variables: list[bytes], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(model_file(variables, **more))
    (folder / "tokenizer.json").write_bytes((original / "tokenizer.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({"suppress_ids": [5], "suppress_ids_begin": [6], "lang_ids": [9]}))
    return folder


@pytest.mark.parametrize(("scheme", "error"), [("float32", 0.0), ("float16", 1e-3), ("bfloat16", 5e-3), ("int8", 5e-3)])
def test_it_is_the_model_that_was_converted(original: Path, tmp_path: Path, scheme: str, error: float) -> None:
    source = packed(original, tmp_path / "theirs", stored(arrays_of(original), scheme))
    assert ctranslate2_directory.is_ctranslate2(source)
    made = tmp_path / "ours"
    made.mkdir()
    convert_whisper(source, made)
    card = read_card(made)
    assert (card.family, card.tasks) == ("WhisperForConditionalGeneration", ["transcription"])
    theirs = WhisperForConditionalGeneration.from_pretrained(original, dtype=torch.float32)
    ours, said = WhisperForConditionalGeneration.from_pretrained(made, dtype=torch.float32, output_loading_info=True)
    assert (said["missing_keys"], said["unexpected_keys"]) == (set(), set())
    for name, weight in theirs.state_dict().items():
        scale = weight.abs().max().item() or 1.0
        assert torch.allclose(ours.state_dict()[name], weight, atol=error * scale, rtol=0), name
    if scheme == "float32":
        with torch.no_grad():
            features, ids = torch.randn(1, 80, 3000), torch.tensor([[50257, 50362, 7]])
            assert torch.equal(
                ours(features, decoder_input_ids=ids).logits, theirs(features, decoder_input_ids=ids).logits
            )
    generation = json.loads((made / "generation_config.json").read_text())
    assert (generation["suppress_tokens"], generation["begin_suppress_tokens"]) == ([5], [6])
    assert TranscriptTokenizer(made).languages == ["en"], "its vocabulary is that of English, whatever it lists"
    assert not ctranslate2_directory.is_ctranslate2(made)


def test_timestamps_that_a_tokenizer_leaves_out_are_added(original: Path, tmp_path: Path) -> None:
    source = packed(original, tmp_path / "theirs", stored(arrays_of(original), "float16"))
    whole = json.loads((original / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in whole["added_tokens"]}
    whole["added_tokens"] = [token for token in whole["added_tokens"] if "." not in token["content"]]
    (source / "tokenizer.json").write_text(json.dumps(whole))
    made = tmp_path / "ours"
    made.mkdir()
    convert_whisper(source, made)
    again = json.loads((made / "tokenizer.json").read_text())
    assert {token["content"]: token["id"] for token in again["added_tokens"]} == ids
    (source / "tokenizer.json").write_text(json.dumps({**whole, "added_tokens": whole["added_tokens"][:-1]}))
    with pytest.raises(ModelLoadError, match=r"is not this model's: it has \d+ tokens for \d+ and lacks"):
        convert_whisper(source, made)


ONE = variable("a", np.zeros((2, 2), "f4"))
HUGE = text("a") + struct.pack("<B", 2) + struct.pack("<II", 1 << 31, 1 << 31) + struct.pack("<BI", 0, 16)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot read"),
        (b"PK\x03\x04 something else", "its format is"),
        (model_file([ONE], version=5), "its format is 5, and 6 can be read"),
        (model_file([ONE])[:-30], "it ends after"),
        (model_file([ONE]) + b"more", "4 bytes are left at its end"),
        (model_file([HUGE]), r"a of shape \[2147483648, 2147483648\] has 16 bytes"),
        (model_file([text("a") + b"\xff"]), "has 255 dimensions"),
        (model_file([text("a") + struct.pack("<BBI", 0, 9, 1) + b"\0"]), "unknown type 9"),
        (model_file([ONE], aliases=text("b") + text("c")), "b stands for c, which is missing"),
        (struct.pack("<I", 6) + text("x") + struct.pack("<II", 1, 1 << 31), "it says that it has 2147483648 variables"),
        (struct.pack("<I", 6) + struct.pack("<H", 0), "a name has 0 bytes"),
        (struct.pack("<I", 6) + struct.pack("<H", 3) + b"\xff\xff\0", "a name is no text"),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(content)
    with pytest.raises(ModelLoadError, match=says):
        read_variables(file)


def without(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        (lambda arrays: arrays, {"name": "TransformerSpec"}, "is a TransformerSpec"),
        (lambda arrays: without(arrays, "decoder/embeddings/weight"), {}, "decoder/embeddings/weight is missing"),
        (lambda arrays: {"encoder/x": np.zeros(1, "f4")}, {}, "position_encodings/encodings is missing"),
        (lambda arrays: {**arrays, "encoder/num_heads": np.array(7, "i2")}, {}, "heads do not divide"),
        (lambda arrays: {**arrays, "encoder/num_heads": np.zeros(2, "i2")}, {}, "is no number"),
        (
            lambda arrays: {**arrays, "encoder/layer_0/self_attention/linear_0/bias": np.ones(192, "f4")},
            {},
            "has a bias for keys",
        ),
        (
            lambda arrays: {**arrays, "encoder/layer_0/ffn/linear_0/weight": np.zeros((256, 64), "i1")},
            {},
            "is int8 without scales",
        ),
    ],
)
def test_what_is_no_whisper_is_refused_by_name(
    original: Path, tmp_path: Path, change: Any, more: Any, says: str
) -> None:
    arrays = change(arrays_of(original))
    source = packed(original, tmp_path / "theirs", [variable(name, array) for name, array in arrays.items()], **more)
    made = tmp_path / "ours"
    made.mkdir()
    with pytest.raises(ModelLoadError, match=says):
        convert_whisper(source, made)
    assert not any(made.iterdir()), "nothing is written of what is refused"


def test_a_directory_that_a_user_names_is_converted_once_and_again_when_it_changed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = packed(original, tmp_path / "faster-whisper-mine", stored(arrays_of(original), "float16"))
    models = tmp_path / "models"
    assert store.locate(str(source), models) is None
    found = store.ensure(str(source), models)
    assert found.path.parent == models
    assert (found.card.id, found.card.source) == ("faster-whisper-mine", f"file:{source}")
    store.check(found, every_byte=True)
    with monkeypatch.context() as patch:
        patch.setattr(ctranslate2_directory, "convert", lambda *_: pytest.fail("it was converted again"))
        assert store.ensure(str(source), models).path == found.path
    packed(original, source, stored(arrays_of(original), "float32"))
    again = store.ensure(str(source), models)
    assert again.path != found.path
    assert load_file(again.path / "model.safetensors")["model.encoder.conv1.weight"].dtype == np.float32


def test_a_directory_that_cannot_be_converted_is_refused_and_nothing_stays(original: Path, tmp_path: Path) -> None:
    source = packed(original, tmp_path / "theirs", [ONE])
    models = tmp_path / "models"
    with pytest.raises(ModelLoadError, match=r"cannot convert .*theirs: .*is missing"):
        store.ensure(str(source), models)
    assert [path.name for path in models.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("encoder/layer_0/self_attention/linear_0/weight", (64, 64)),
        ("decoder/embeddings/weight", (9,)),
        ("encoder/conv1/weight", ()),
    ],
)
def test_arrays_of_shapes_that_no_whisper_has_are_refused_in_a_sentence(
    original: Path, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    arrays = {**arrays_of(original), name: np.zeros(shape, "f4")}
    source = packed(original, tmp_path / "theirs", stored(arrays, "float32"))
    with pytest.raises(ModelLoadError) as refused:
        store.ensure(str(source), tmp_path / "models")
    assert refused.value.message.startswith(f"cannot convert {source}: ")
    assert "Traceback" not in refused.value.message
