"""Writes a Whisper of CTranslate2 (`faster-whisper` uses them) as a directory of Transformers.

Both have the same layers. CTranslate2 keeps the projections of queries, keys and values in one array, where
Transformers has one for each and no bias for keys; it has numbers of heads as variables, and leaves out what follows
from the vocabulary. Numbers stay as they are stored: float16 in float16, and so on. Knows no package that such a model
comes in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from tessera.errors import ModelLoadError
from tessera.hub.ctranslate2_directory import MODEL_FILE
from tessera.models.ctranslate2.variables import Variables, read_variables
from tessera.tokenizer.model_files import read_as

SPECIFICATION = "WhisperSpec"
ENGLISH_ONLY = 51_864
"""Size of the vocabulary of Whispers that know English alone; those of more languages have more tokens."""
TIMESTAMPS = 1501
"""Tokens from `<|0.00|>` to `<|30.00|>`."""
LATEST_FIRST_STAMP = 50
"""Timestamp, in 0.02 s, after which no transcript begins: what OpenAI's own decoding allows."""
_LAYER = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_0": "self_attn.q_proj+k_proj+v_proj",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.k_proj+v_proj",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
"""Parts of a layer: CTranslate2's names, and Transformers'; `+` joins parts that are rows of one array."""

Arrays = dict[str, npt.NDArray[np.float16 | np.float32]]


class _Settings(msgspec.Struct, frozen=True):
    """What is used of CTranslate2's `config.json`."""

    suppress_ids: list[int] = []
    suppress_ids_begin: list[int] = []
    alignment_heads: list[tuple[int, int]] = []


def convert_whisper(source: Path, directory: Path) -> None:
    """Fill `directory` with the model of `source`, which has `model.bin`, `tokenizer.json` and perhaps `config.json`.

    Raises:
        ModelLoadError: a file is missing or damaged, or it is no Whisper.
    """
    variables = read_variables(source / MODEL_FILE)
    if variables.specification != SPECIFICATION:
        raise ModelLoadError(
            f"{source / MODEL_FILE} is a {variables.specification}; of CTranslate2's models only Whispers can be read"
        )
    settings_file = source / "config.json"
    settings = read_as(settings_file, _Settings) if settings_file.is_file() else _Settings()
    try:
        weights = _weights(variables)
        config = _config(variables, weights)
    except ModelLoadError as error:
        raise ModelLoadError(f"{source / MODEL_FILE}: {error.message}") from error
    tokenizer = _tokenizer(source / "tokenizer.json", config["vocab_size"])
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    special = _special(tokens)
    _write(directory, "config.json", {**config, **special})
    _write(directory, "generation_config.json", {**special, **_generation(settings, config, tokens)})
    _write(directory, "preprocessor_config.json", _preprocessor(config["num_mel_bins"]))
    _write(directory, "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448})
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _weights(variables: Variables) -> Arrays:
    """Arrays under Transformers' names, each in memory of its own."""
    found: Arrays = {}
    for side in ("encoder", "decoder"):
        found[f"model.{side}.embed_positions.weight"] = variables.floats(f"{side}/position_encodings/encodings")
        found |= _named(variables, f"{side}/layer_norm", f"model.{side}.layer_norm")
        layers = _layers(variables, side)
        for layer in range(layers):
            for theirs, ours in _LAYER.items():
                if side == "encoder" and theirs.startswith("attention/"):
                    continue
                found |= _named(variables, f"{side}/layer_{layer}/{theirs}", f"model.{side}.layers.{layer}.{ours}")
    for convolution in ("conv1", "conv2"):
        found |= _named(variables, f"encoder/{convolution}", f"model.encoder.{convolution}")
    found["model.decoder.embed_tokens.weight"] = variables.floats("decoder/embeddings/weight")
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def _layers(variables: Variables, side: str) -> int:
    count = 0
    while f"{side}/layer_{count}/ffn/linear_0/weight" in variables.arrays:
        count += 1
    if not count:
        raise ModelLoadError(f"the {side} has no layers")
    return count


def _named(variables: Variables, theirs: str, ours: str) -> Arrays:
    """Weight and bias of one part, or of several whose rows follow each other."""
    if f"{theirs}/gamma" in variables.arrays:
        return {
            f"{ours}.weight": variables.floats(f"{theirs}/gamma"),
            f"{ours}.bias": variables.floats(f"{theirs}/beta"),
        }
    before, _, last = ours.rpartition(".")
    parts = last.split("+")
    weights = np.split(variables.floats(f"{theirs}/weight"), len(parts))
    biases = np.split(variables.floats(f"{theirs}/bias"), len(parts))
    found: Arrays = {}
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        found[f"{before}.{part}.weight"] = weight
        if part != "k_proj":
            found[f"{before}.{part}.bias"] = bias
        elif np.any(bias):
            raise ModelLoadError(f"{theirs} has a bias for keys, which Whispers have not")
    return found


def _config(variables: Variables, weights: Arrays) -> dict[str, Any]:
    vocabulary, width = weights["model.decoder.embed_tokens.weight"].shape
    heads = {side: variables.number(f"{side}/num_heads") for side in ("encoder", "decoder")}
    if any(count < 1 or width % count for count in heads.values()):
        raise ModelLoadError(f"{heads} heads do not divide a width of {width}")
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": weights["model.encoder.conv1.weight"].shape[1],
        "encoder_layers": _layers(variables, "encoder"),
        "decoder_layers": _layers(variables, "decoder"),
        "encoder_attention_heads": heads["encoder"],
        "decoder_attention_heads": heads["decoder"],
        "encoder_ffn_dim": weights["model.encoder.layers.0.fc1.weight"].shape[0],
        "decoder_ffn_dim": weights["model.decoder.layers.0.fc1.weight"].shape[0],
        "max_source_positions": weights["model.encoder.embed_positions.weight"].shape[0],
        "max_target_positions": weights["model.decoder.embed_positions.weight"].shape[0],
        "tie_word_embeddings": True,
        "dtype": str(weights["model.encoder.layer_norm.weight"].dtype),
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }


def _tokenizer(file: Path, vocabulary: int) -> Tokenizer:
    """The model's tokenizer, with the timestamps that some files leave out."""
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing; the repository that the model was converted from has it")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        if type(error) is not Exception:  # `tokenizers` raises plain Exception for a file that it cannot parse
            raise
        raise ModelLoadError(f"cannot read {file}: {error}") from error
    stamps = [f"<|{number * 0.02:.2f}|>" for number in range(TIMESTAMPS)]
    tokens = tokenizer.get_vocab(with_added_tokens=True)
    if len(tokens) == vocabulary - TIMESTAMPS and stamps[0] not in tokens:
        tokenizer.add_tokens([AddedToken(stamp, normalized=False, special=False) for stamp in stamps])
        tokens = tokenizer.get_vocab(with_added_tokens=True)
    wanted = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|transcribe|>",
        "<|notimestamps|>",
        "<|startofprev|>",
        *stamps,
    ]
    missing = [token for token in wanted if token not in tokens]
    if missing or max(tokens.values()) >= vocabulary:
        lacks = f" and lacks {missing[0]}" if missing else ""
        raise ModelLoadError(f"{file} is not this model's: it has {len(tokens)} tokens for {vocabulary}{lacks}")
    return tokenizer


def _special(tokens: dict[str, int]) -> dict[str, Any]:
    end = tokens["<|endoftext|>"]
    start = tokens["<|startoftranscript|>"]
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}


def _generation(settings: _Settings, config: dict[str, Any], tokens: dict[str, int]) -> dict[str, Any]:
    """What Transformers' decoding of Whisper asks for. A model of English alone has tokens of languages that it never
    learned, so its vocabulary says what it is."""
    found: dict[str, Any] = {
        "is_multilingual": config["vocab_size"] != ENGLISH_ONLY,
        "max_length": config["max_target_positions"],
        "max_initial_timestamp_index": LATEST_FIRST_STAMP,
        "no_timestamps_token_id": tokens["<|notimestamps|>"],
        "prev_sot_token_id": tokens["<|startofprev|>"],
        "return_timestamps": False,
        "suppress_tokens": settings.suppress_ids,
        "begin_suppress_tokens": settings.suppress_ids_begin,
        "alignment_heads": settings.alignment_heads,
    }
    if found["is_multilingual"]:
        # Tokens of languages lie between that of the beginning and those of the tasks.
        first, last = tokens["<|startoftranscript|>"] + 1, tokens["<|translate|>"]
        by_id = {number: token for token, number in tokens.items()}
        found["lang_to_id"] = {by_id[number]: number for number in range(first, last)}
        found["task_to_id"] = {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return found


def _preprocessor(bins: int) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": bins,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _write(directory: Path, name: str, content: dict[str, Any]) -> None:
    (directory / name).write_text(json.dumps(content, indent=2) + "\n")
