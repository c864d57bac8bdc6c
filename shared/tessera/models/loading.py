"""Loading a model directory: Transformers' classes, safetensors only, no remote code, nothing fetched.

The architecture is the directory's own configuration; weights are built on the meta device and mapped from disk by
Transformers. Does not know services or engines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Mxfp4Config,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from tessera.errors import ModelLoadError
from tessera.models import attention

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def refuse_pickles(directory: Path) -> None:
    """Say clearly that a directory whose only weights are pickles is not loaded.

    Raises:
        ModelLoadError: there is no safetensors file.
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


def load_pretrained(
    auto_class: Any, directory: Path, *, device: torch.device, dtype: torch.dtype, **kwargs: Any
) -> Any:
    """`auto_class.from_pretrained(directory)` with our rules, in eval mode on `device`.

    Raises:
        ModelLoadError: missing or pickled weights, a damaged file, an architecture this Transformers does not know.
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
        if type(error).__name__ != "SafetensorError":
            raise
        raise ModelLoadError(f"a weight file in {directory} is damaged: {error}") from error
    if missing := sorted(loading["missing_keys"]):
        # Transformers would go on with random values in their place.
        raise ModelLoadError(f"{directory} lacks {len(missing)} weights of its architecture: {', '.join(missing[:3])}")
    return model.eval().requires_grad_(False).to(device)


def load_decoder(directory: Path, *, device: torch.device, dtype: torch.dtype, dummy: bool = False) -> PreTrainedModel:
    """A causal language model, or the one inside a vision-language model, running on our attention.

    Args:
        directory: of the model.
        device: where it runs.
        dtype: of its weights.
        dummy: whether its weights are random, made on the device; then only the configuration is read.

    Raises:
        ModelLoadError: see `load_pretrained`; or its decoder has layers that do not go through `AttentionInterface`.
    """
    attention.register()
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read the configuration in {directory}: {error}") from error
    if "vision_config" in config.sub_configs:
        parts = {"": "sdpa", **dict.fromkeys(config.sub_configs, "sdpa"), "text_config": attention.NAME}
        implementation: str | dict[str, str] = parts
        auto_class: Any = AutoModelForImageTextToText
    else:
        implementation, auto_class = attention.NAME, AutoModelForCausalLM
    # Transformers' own layers of four bits fetch their kernels from a hub; ours come after loading.
    optional = {"quantization_config": Mxfp4Config(dequantize=True)} if _is_mxfp4(config) else {}
    if dummy:
        return make_dummy(auto_class, config, device=device, dtype=dtype, attn_implementation=implementation)
    model: PreTrainedModel = load_pretrained(
        auto_class, directory, device=device, dtype=dtype, attn_implementation=implementation, **optional
    )
    return model


def experts_stored_as(directory: Path) -> Literal["stored", "mxfp4"]:
    """The scheme that keeps the experts of a directory as they are there: gpt-oss' are MXFP4, which loading expands.

    Raises:
        ModelLoadError: its configuration cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read the configuration in {directory}: {error}") from error
    return "mxfp4" if _is_mxfp4(config) else "stored"


def _is_mxfp4(config: PreTrainedConfig) -> bool:
    stored = getattr(config, "quantization_config", None)
    return isinstance(stored, dict) and stored.get("quant_method") == "mxfp4"


def make_dummy(
    auto_class: Any, config: Any, *, device: torch.device, dtype: torch.dtype, **kwargs: Any
) -> PreTrainedModel:
    """A model of a configuration's shapes with the same random values every time.

    Raises:
        ModelLoadError: an architecture this Transformers does not know.
    """
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), device:
            torch.manual_seed(0)
            model: PreTrainedModel = auto_class.from_config(config, dtype=dtype, trust_remote_code=False, **kwargs)
    except (ValueError, KeyError, ImportError) as error:
        raise ModelLoadError(f"cannot make a model of this configuration: {error}") from error
    return model.eval().requires_grad_(False).to(device)


def require_attention_only(model: PreTrainedModel, layers: attention.Probe, directory: Path) -> None:
    """Refuse decoders with recurrent or linear-attention layers, which have no KV pages.

    Raises:
        ModelLoadError: names them.
    """
    expected = model.config.get_text_config().num_hidden_layers
    if len(layers.found) == expected:
        return
    there = {getattr(module, "layer_idx", None) for module, *_ in layers.found}
    others = sorted(
        {
            type(module).__name__
            for module in model.modules()
            if getattr(module, "layer_idx", None) not in {None, *there}
        }
    )
    kinds = f" (the others are {', '.join(others)})" if others else ""
    raise ModelLoadError(
        f"{directory}: only {len(layers.found)} of {expected} layers attend through AttentionInterface{kinds}; models "
        "with linear-attention or recurrent layers are not supported"
    )
