"""Reads what the files of an encoder's directory say: what it is for, pooling, prompts, labels and lengths.

The files are those of sentence-transformers (`modules.json`, `1_Pooling/config.json`,
`config_sentence_transformers.json`, `sentence_bert_config.json`) and Transformers' `config.json`. Settings win over
them. Loads no weight, and does not know how anything is computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from tessera.errors import ModelLoadError
from tessera.settings.encoders import EncoderRole, EncoderSettings, PoolingKind
from tessera.tokenizer.files import read_json
from tessera.tokenizer.model_files import read_list
from tessera.wire.models import Task

TASKS: dict[EncoderRole, list[Task]] = {
    "embedding": ["embeddings", "score"],
    "rerank": ["rerank", "score"],
    "classify": ["classify"],
    "moderation": ["classify", "moderations"],
}
"""What a model of each role can do."""
CLASSIFIER = "ForSequenceClassification"
DECODER = "ForCausalLM"
UNLIMITED = 1_000_000
"""Lengths above this in `tokenizer_config.json` mean that none was set."""
_POOLING: dict[str, PoolingKind] = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
_POOLING_WORDS: dict[str, PoolingKind] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_ACTIVATIONS: dict[str, Literal["sigmoid", "softmax", "identity"]] = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Identity": "identity",
}

Activation = Literal["sigmoid", "softmax", "identity"]


class DenseLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer behind the pooling, with the folder of its weights and the name of its activation."""

    folder: str
    inputs: int
    outputs: int
    bias: bool
    activation: Literal["Tanh", "Identity", "GELU", "ReLU"]


class EncoderFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of an encoder say, where the settings do not say otherwise.

    Attributes:
        role: what the model is for.
        family: class of the architecture, as `config.json` names it.
        pooling: how an embedding is made of hidden states.
        pools_prompt: whether the tokens of a prompt count in the pooling.
        normalized: whether embeddings have length one.
        dense: layers behind the pooling, in order.
        max_tokens: longest text that the files allow; None when they name no length.
        prompts: what is put before a text, by name.
        default_prompt: name of the prompt of requests that name none.
        lowercase: whether texts are lower-cased first.
        labels: of a classifier, in the order of its outputs.
        activation: makes scores of a classifier's outputs.
        dimensions: lengths to which embeddings may be cut; empty if none is named, None if all are.
        token_types: whether the model tells the two texts of a pair apart by token types.
        yes_no: whether it is a language model that reranks by answering yes or no.
        pairs_by_template: whether a pair is written by a template, not by the tokenizer's pair form.
    """

    role: EncoderRole
    family: str
    pooling: PoolingKind
    pools_prompt: bool
    normalized: bool
    dense: list[DenseLayer]
    max_tokens: int | None
    prompts: dict[str, str]
    default_prompt: str | None
    lowercase: bool
    labels: list[str]
    activation: Activation
    dimensions: list[int] | None
    token_types: bool
    yes_no: bool
    pairs_by_template: bool


def read_encoder_files(directory: Path, settings: EncoderSettings) -> EncoderFiles:
    """Read a directory.

    Raises:
        ModelLoadError: a file is damaged, asks for something that is not supported, or does not say what the model is
            for; the message says what to set.
    """
    config = read_json(directory / "config.json")
    family = family_of(config)
    if not family:
        raise ModelLoadError(f"{directory / 'config.json'} names no architecture: it is not an encoder's directory")
    modules = _modules(directory)
    role = settings.role if settings.role != "auto" else _role_of(family, config, bool(modules), directory)
    pooling, pools_prompt = _pooling_of(directory, modules, settings)
    sentences = _object(directory / "config_sentence_transformers.json")
    sizes = _object(directory / "sentence_bert_config.json")
    labels = _labels_of(config)
    yes_no = role == "rerank" and DECODER in family
    if role == "rerank" and not yes_no and len(labels) != 1:
        raise ModelLoadError(f"{directory} has {len(labels)} labels; a reranker has one, so set `role` to classify")
    return EncoderFiles(
        role=role,
        family=family,
        pooling=pooling,
        pools_prompt=pools_prompt,
        normalized=not modules or "Normalize" in modules
        if settings.normalize == "auto"
        else settings.normalize == "on",
        dense=[_dense_of(directory, folder) for kind, folder in modules.items() if kind.startswith("Dense")],
        max_tokens=settings.max_tokens or _max_tokens_of(directory, sizes),
        prompts={str(name): str(text) for name, text in (sentences.get("prompts") or {}).items()},
        default_prompt=sentences.get("default_prompt_name"),
        lowercase=bool(sizes.get("do_lower_case")),
        labels=labels,
        activation="sigmoid" if yes_no else _activation_of(config, len(labels)),
        dimensions=None if settings.dimensions == "any" else _dimensions_of(config),
        token_types=int(config.get("type_vocab_size") or 0) > 1,
        yes_no=yes_no,
        pairs_by_template=bool(settings.template) or yes_no,
    )


def family_of(config: dict[str, Any]) -> str:
    """The class of the architecture that a `config.json` names; empty if it names none."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def encoder_tasks(config: dict[str, Any]) -> list[Task] | None:
    """The tasks of a directory's card if it is an encoder by its `config.json` alone, else None."""
    family = family_of(config)
    if CLASSIFIER in family:
        return TASKS["rerank" if len(_labels_of(config)) == 1 else "classify"]
    is_text = "max_position_embeddings" in config and "vocab_size" in config and "sampling_rate" not in config
    if is_text and family.endswith(("Model", "ForMaskedLM", "ForPreTraining")):
        return TASKS["embedding"]
    return None


def _object(path: Path) -> dict[str, Any]:
    return read_json(path)


def _modules(directory: Path) -> dict[str, str]:
    """The folders of sentence-transformers' modules by the class's name; several of one class are numbered."""
    path = directory / "modules.json"
    if not path.is_file():
        return {}
    listed = read_list(path)
    found: dict[str, str] = {}
    try:
        for module in listed:
            kind = str(module["type"]).rsplit(".", 1)[-1]
            if kind not in {"Transformer", "Pooling", "Dense", "Normalize"}:
                raise ModelLoadError(
                    f"{path} asks for the module {kind}; supported are Transformer, Pooling, Dense and Normalize"
                )
            found[kind if kind not in found else f"{kind} {len(found)}"] = str(module["path"])
    except (KeyError, TypeError) as error:
        raise ModelLoadError(f"{path} is no list of modules: {error!r}") from error
    return found


def _role_of(family: str, config: dict[str, Any], has_modules: bool, directory: Path) -> EncoderRole:
    if has_modules:
        return "embedding"
    if CLASSIFIER in family:
        return "rerank" if len(_labels_of(config)) == 1 else "classify"
    if DECODER in family:
        raise ModelLoadError(
            f"{directory} is a {family} and does not say what it is for; set `role` of its [[text.encoders]] to "
            '"embedding", or to "rerank" if it answers yes or no'
        )
    return "embedding"


def _pooling_of(directory: Path, modules: dict[str, str], settings: EncoderSettings) -> tuple[PoolingKind, bool]:
    values = _object(directory / modules["Pooling"] / "config.json") if "Pooling" in modules else {}
    pools_prompt = bool(values.get("include_prompt", True))
    if settings.pooling != "auto":
        return settings.pooling, pools_prompt
    named = [key.removeprefix("pooling_mode_") for key, on in values.items() if key.startswith("pooling_mode_") and on]
    word = values.get("pooling_mode")
    named += [] if word is None else [word] if isinstance(word, str) else list(word)
    if not named:
        return "mean", pools_prompt
    known = {**_POOLING, **_POOLING_WORDS}
    if len(named) > 1 or named[0] not in known:
        raise ModelLoadError(
            f"{directory} pools by {', '.join(map(str, named))}; supported is one of mean, cls, last and max"
        )
    return known[named[0]], pools_prompt


def _dense_of(directory: Path, folder: str) -> DenseLayer:
    path = directory / folder / "config.json"
    values = _object(path)
    activation = str(values.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    try:
        return msgspec.convert(
            {
                "folder": folder,
                "inputs": values["in_features"],
                "outputs": values["out_features"],
                "bias": values.get("bias", True),
                "activation": activation,
            },
            DenseLayer,
        )
    except (KeyError, msgspec.ValidationError) as error:
        raise ModelLoadError(f"{path} is no dense layer that is supported: {error}") from error


def _max_tokens_of(directory: Path, sizes: dict[str, Any]) -> int | None:
    named = [sizes.get("max_seq_length"), _object(directory / "tokenizer_config.json").get("model_max_length")]
    lengths = [int(length) for length in named if isinstance(length, int | float) and 0 < length < UNLIMITED]
    return min(lengths, default=None)


def _labels_of(config: dict[str, Any]) -> list[str]:
    named = config.get("id2label")
    if isinstance(named, dict) and named:
        return [str(named[key]) for key in sorted(named, key=int)]
    count = config.get("num_labels")
    return [f"LABEL_{index}" for index in range(count if isinstance(count, int) else 2)]


def _activation_of(config: dict[str, Any], labels: int) -> Activation:
    inner = config.get("sentence_transformers")
    named = inner.get("activation_fn") if isinstance(inner, dict) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if named is not None:
        word = str(named).rsplit(".", 1)[-1]
        if word not in _ACTIVATIONS:
            raise ModelLoadError(
                f"`config.json` asks for the activation {named}; supported are {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[word]
    problem = config.get("problem_type")
    if problem == "regression":
        return "identity"
    return "sigmoid" if labels == 1 or problem == "multi_label_classification" else "softmax"


def _dimensions_of(config: dict[str, Any]) -> list[int] | None:
    named = config.get("matryoshka_dimensions")
    if isinstance(named, list):
        return [int(size) for size in named]
    return None if config.get("is_matryoshka") else []
