"""Loads decoders on our attention: causal language models, and vision-language models with such a decoder.

Knows nothing about services, engines, or what happens to the weights after loading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Mxfp4Config,
    PreTrainedConfig,
    PreTrainedModel,
)

from tessera.errors import ModelLoadError
from tessera.models import attention
from tessera.models.loading import load_pretrained, make_dummy, read_config


def load_decoder(directory: Path, *, device: torch.device, dtype: torch.dtype, dummy: bool = False) -> PreTrainedModel:
    """Load a causal language model, or a vision-language model that has one inside, on our attention.

    Args:
        directory: the model directory.
        device: where the model runs.
        dtype: of its weights.
        dummy: whether its weights are random values made on the device; then only the configuration is read.

    Raises:
        ModelLoadError: for the reasons that `load_pretrained` names, or because the configuration cannot be read.
    """
    attention.register()
    config = read_config(directory)
    if "vision_config" in config.sub_configs:
        parts = {"": "sdpa", **dict.fromkeys(config.sub_configs, "sdpa"), "text_config": attention.NAME}
        implementation: str | dict[str, str] = parts
        auto_class: Any = AutoModelForImageTextToText
    else:
        implementation, auto_class = attention.NAME, AutoModelForCausalLM
    # Transformers' own MXFP4 layers would fetch kernels from a hub; weights are expanded, and quantized after loading.
    optional = {"quantization_config": Mxfp4Config(dequantize=True)} if _is_mxfp4(config) else {}
    if dummy:
        return make_dummy(auto_class, config, device=device, dtype=dtype, attn_implementation=implementation)
    model: PreTrainedModel = load_pretrained(
        auto_class, directory, device=device, dtype=dtype, attn_implementation=implementation, **optional
    )
    return model


def experts_stored_as(directory: Path) -> Literal["stored", "mxfp4"]:
    """The scheme that stores experts as the directory does. gpt-oss stores MXFP4, which loading expands.

    Raises:
        ModelLoadError: its configuration cannot be read.
    """
    config = read_config(directory)
    return "mxfp4" if _is_mxfp4(config) else "stored"


def _is_mxfp4(config: PreTrainedConfig) -> bool:
    stored = getattr(config, "quantization_config", None)
    return isinstance(stored, dict) and stored.get("quant_method") == "mxfp4"


def require_attention_only(model: PreTrainedModel, layers: attention.Probe, directory: Path) -> None:
    """Refuse decoders with recurrent or linear-attention layers, which have no KV pages.

    Raises:
        ModelLoadError: names the layers.
    """
    expected = model.config.get_text_config().num_hidden_layers
    if len(layers.modules) == expected:
        return
    there = {getattr(module, "layer_idx", None) for module, *_ in layers.modules}
    others = sorted(
        {
            type(module).__name__
            for module in model.modules()
            if getattr(module, "layer_idx", None) not in {None, *there}
        }
    )
    kinds = f" (the others are {', '.join(others)})" if others else ""
    raise ModelLoadError(
        f"{directory}: only {len(layers.modules)} of {expected} layers attend through AttentionInterface{kinds}; "
        "models with linear-attention or recurrent layers are not supported"
    )
