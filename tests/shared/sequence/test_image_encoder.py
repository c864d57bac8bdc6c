"""Which vision-language models may have images: those whose decoder treats an image token as any other."""

from __future__ import annotations

import pytest
import torch
import transformers

from tessera.sequence.runner.image_encoder import why_unsupported

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "head_dim": 16,
}


def model_of(name: str, **changes):
    config = transformers.AutoConfig.for_model(name, **changes)
    with torch.device("meta"):
        return transformers.AutoModelForImageTextToText.from_config(config)


def test_one_token_per_feature_is_served():
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = model_of("idefics3", text_config={"model_type": "llama", **TEXT}, vision_config=tower)
    assert why_unsupported(model) is None


@pytest.mark.parametrize(
    ("name", "tower"),
    [
        ("qwen2_vl", {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}),
        ("gemma3", {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}),
    ],
)
def test_positions_and_attention_of_their_own_are_not(name, tower):
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    text = TEXT | ({"rope_parameters": rope} if name == "qwen2_vl" else {})
    reason = why_unsupported(model_of(name, text_config=text, vision_config=tower))
    assert reason is not None
    assert "of their own" in reason
