"""Loads a model directory through Transformers' classes: safetensors only, no remote code, nothing fetched.

The directory's own configuration gives the architecture. Transformers builds the model on the meta device and maps the
weights from disk. Knows nothing about services or engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from tessera.errors import ModelLoadError
from tessera.tokenizer.model_files import read_object, text

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of weight files that are pickles, which can run code when they are loaded."""

WRONG_VALUES = (AttributeError, TypeError, RecursionError, ArithmeticError, IndexError, AssertionError)
"""What a library raises beside its own errors when a configuration has values of other types than it takes."""


def refuse_pickles(directory: Path) -> None:
    """Refuse a directory without safetensors files.

    Raises:
        ModelLoadError: there is none; names the pickles that are there instead.
    """
    if any(directory.rglob("*.safetensors")):
        return
    pickles = sorted(path.name for path in directory.rglob("*") if path.suffix in PICKLES)
    if pickles:
        raise ModelLoadError(
            f"{directory} has only pickled weights ({', '.join(pickles[:3])}), which can run code when loaded; "
            "convert them to safetensors"
        )
    raise ModelLoadError(f"{directory} has no weights: no *.safetensors file")


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration of a directory, as Transformers reads it.

    Raises:
        ModelLoadError: it cannot be read, or this version of Transformers does not know the architecture.
    """
    read_object(directory / "config.json")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Classes raise whatever their own arithmetic on a stranger's values raises.
        raise ModelLoadError(f"cannot read the configuration in {directory}: {error!r}") from error
    return config


def load_pretrained(
    auto_class: Any,
    directory: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    unused: tuple[str, ...] = (),
    **kwargs: Any,
) -> Any:
    """`auto_class.from_pretrained(directory)` with our rules, in eval mode on `device`.

    Args:
        auto_class: a class of Transformers that has `from_pretrained`.
        directory: the model directory.
        device: where the model runs.
        dtype: of its weights.
        unused: beginnings of the names of weights that may be missing, because nothing of ours reads them.
        kwargs: passed on to the class.

    Raises:
        ModelLoadError: weights are missing or pickled, a file is damaged, or this version of Transformers does not know
            the architecture.
    """
    refuse_pickles(directory)
    transformers_logging.disable_progress_bar()
    try:
        model, loading = auto_class.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **kwargs,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelLoadError(f"cannot load {directory}: {error}") from error
    except Exception as error:
        # safetensors raises its own SafetensorError, which derives from Exception alone
        if type(error).__name__ == "SafetensorError":
            raise ModelLoadError(f"a weight file in {directory} is damaged: {error}") from error
        if not isinstance(error, WRONG_VALUES):
            raise
        raise ModelLoadError(f"the configuration in {directory} cannot be loaded: {error!r}") from error
    if missing := sorted(name for name in loading["missing_keys"] if not name.startswith(unused)):
        # Transformers would go on with random values in their place.
        raise ModelLoadError(f"{directory} lacks {len(missing)} weights of its architecture: {', '.join(missing[:3])}")
    return model.eval().requires_grad_(False).to(device)


def make_dummy(
    auto_class: Any, config: Any, *, device: torch.device, dtype: torch.dtype, **kwargs: Any
) -> PreTrainedModel:
    """A model with the shapes of a configuration and random weights, which are the same every time.

    Raises:
        ModelLoadError: this version of Transformers does not know the architecture.
    """
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), device:
            torch.manual_seed(0)
            model: PreTrainedModel = auto_class.from_config(config, dtype=dtype, trust_remote_code=False, **kwargs)
    except (ValueError, KeyError, ImportError, *WRONG_VALUES) as error:
        raise ModelLoadError(f"cannot make a model of this configuration: {error}") from error
    return model.eval().requires_grad_(False).to(device)


def require_kind(directory: Path, kinds: tuple[str, ...], purpose: str) -> str:
    """The `model_type` of a directory; one that is not of `kinds` is refused before anything is loaded.

    Args:
        directory: the model directory.
        kinds: the types that are accepted.
        purpose: what the model is for; named in the error.

    Raises:
        ModelLoadError: names the directory's type and the accepted ones.
    """
    path = directory / "config.json"
    kind = text(read_object(path), "model_type", path)
    if kind is None or kind not in kinds:
        raise ModelLoadError(f"{directory} is a {kind!r} model; {purpose} knows {', '.join(kinds)}")
    return kind
