"""Packed texts get the numbers that Transformers gives each of them alone, whatever else is in the row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tests.shared.encoders.tiny_encoders import FAMILIES, make, write_sentence_files, write_tokenizer

from tessera.encoders.encoder import Encoder
from tessera.encoders.loading import load_encoder
from tessera.errors import ModelLoadError
from tessera.hub.cards import read_card
from tessera.settings.encoders import EncoderSettings
from tessera.wire.engine import EncoderText

LENGTHS = (1, 7, 7, 40, 3, 90, 41, 20)


def load(directory: Path, **settings: object) -> Encoder:
    return load_encoder(
        directory,
        read_card(directory),
        EncoderSettings(source=str(directory), **settings),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def texts(seed: int = 0, lengths: tuple[int, ...] = LENGTHS, types: bool = False) -> list[EncoderText]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for length in lengths:
        ids = torch.randint(4, 64, (length,), generator=generator).tolist()
        made.append(EncoderText(ids, [int(place > length // 2) for place in range(length)] if types else []))
    return made


def inputs(text: EncoderText, types: bool = False) -> dict[str, torch.Tensor]:
    found = {"input_ids": torch.tensor([text.token_ids])}
    return found | ({"token_type_ids": torch.tensor([text.types])} if types else {})


def rows_of(encoder: Encoder, given: list[EncoderText]) -> np.ndarray:
    return encoder.run(given).numpy()


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def normalized(vector: np.ndarray) -> np.ndarray:
    return vector / np.sqrt((vector.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_embeddings_are_those_of_each_text_alone(tmp_path: Path, family: str, pooling: str) -> None:
    make(tmp_path / "model", family)
    reference = transformers.AutoModel.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    encoder = load(tmp_path / "model", role="embedding", pooling=pooling)
    given = texts()
    found = rows_of(encoder, given)
    for row, text in zip(found, given, strict=True):
        with torch.inference_mode():
            hidden = reference(**inputs(text)).last_hidden_state[0].numpy()
        vector = {"mean": hidden.mean(axis=0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        np.testing.assert_allclose(row, normalized(vector), atol=1e-5)


def test_what_else_is_in_the_row_changes_nothing(tmp_path: Path, family: str) -> None:
    make(tmp_path / "model", family)
    encoder = load(tmp_path / "model", role="embedding")
    given = texts()
    together = rows_of(encoder, given)
    alone = np.concatenate([rows_of(encoder, [text]) for text in given])
    others = rows_of(encoder, [*texts(seed=9), *given])[len(LENGTHS) :]
    np.testing.assert_allclose(together, alone, atol=2e-6)
    np.testing.assert_allclose(together, others, atol=2e-6)


@pytest.mark.parametrize("labels", [["LABEL_0"], ["good", "bad", "ugly"]])
def test_classifiers_give_the_outputs_of_their_class(tmp_path: Path, family: str, labels: list[str]) -> None:
    if family.startswith(("gemma3", "qwen3_windowed")):
        pytest.skip("the same head as qwen3")
    reference = make(tmp_path / "model", family, "classifier", labels=labels)
    encoder = load(tmp_path / "model")
    assert encoder.files.role == ("rerank" if len(labels) == 1 else "classify")
    types = family == "bert"
    given = texts(types=types)
    found = rows_of(encoder, given)
    for row, text in zip(found, given, strict=True):
        with torch.inference_mode():
            expected = reference(**inputs(text, types)).logits[0].numpy()
        np.testing.assert_allclose(row, expected, atol=1e-4, rtol=1e-5)


def test_a_classifier_that_reads_all_tokens_gives_the_outputs_of_its_class(tmp_path: Path) -> None:
    reference = make(tmp_path / "model", "modernbert", "classifier", labels=["a", "b"], classifier_pooling="mean")
    encoder = load(tmp_path / "model")
    given = texts()
    for row, text in zip(rows_of(encoder, given), given, strict=True):
        with torch.inference_mode():
            np.testing.assert_allclose(row, reference(**inputs(text)).logits[0].numpy(), atol=1e-4, rtol=1e-5)


def test_a_yes_no_reranker_gives_the_logits_of_its_language_model(tmp_path: Path) -> None:
    reference = make(tmp_path / "model", "qwen3", "decoder")
    encoder = load(tmp_path / "model", role="rerank")
    yes, no = 13, 14
    given = texts()
    for row, text in zip(rows_of(encoder, given), given, strict=True):
        with torch.inference_mode():
            logits = reference(**inputs(text)).logits[0, -1]
        np.testing.assert_allclose(row, [float(logits[yes] - logits[no])], atol=1e-3, rtol=1e-5)


def test_windows_hold_in_texts_many_times_as_long(tmp_path: Path) -> None:
    for family in ("modernbert", "qwen3_windowed", "gemma3"):
        make(tmp_path / family, family)
        reference = transformers.AutoModel.from_pretrained(tmp_path / family, attn_implementation="eager").eval()
        encoder = load(tmp_path / family, role="embedding", normalize="off")
        given = texts(lengths=(500, 480, 300))
        for row, text in zip(rows_of(encoder, given), given, strict=True):
            with torch.inference_mode():
                expected = reference(**inputs(text)).last_hidden_state[0].mean(dim=0).numpy()
            np.testing.assert_allclose(row, expected, atol=1e-4, rtol=1e-4)


def test_dense_layers_and_prompts_that_do_not_count_follow_sentence_transformers(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    reference = make(tmp_path / "model", "bert")
    write_sentence_files(tmp_path / "model", "mean_tokens", dense=(32, 8), include_prompt=False)
    encoder = load(tmp_path / "model")
    (text,) = texts(lengths=(9,))
    with torch.inference_mode():
        hidden = reference(**inputs(text)).last_hidden_state[0].numpy()
    weights = load_file(tmp_path / "model" / "2_Dense" / "model.safetensors")
    dense = np.tanh(hidden[4:].mean(axis=0) @ weights["linear.weight"].T + weights["linear.bias"])
    found = rows_of(encoder, [EncoderText(text.token_ids, skip=4)])
    np.testing.assert_allclose(found[0], normalized(dense), atol=1e-5)


@pytest.mark.parametrize(("pooling", "expected"), [("cls_token", "cls"), ("lasttoken", "last"), ("max_tokens", "max")])
def test_pooling_is_read_from_the_files(tmp_path: Path, pooling: str, expected: str) -> None:
    make(tmp_path / "model", "bert")
    write_sentence_files(tmp_path / "model", pooling, normalize=False)
    files = load(tmp_path / "model").files
    assert (files.pooling, files.normalized) == (expected, False)
    assert load(tmp_path / "model", pooling="mean", normalize="on").files.pooling == "mean"


def test_lengths_leave_out_the_positions_of_padding(tmp_path: Path) -> None:
    make(tmp_path / "model", "xlm_roberta")
    assert load(tmp_path / "model").card.context_length == 128
    (tmp_path / "model" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 50}))
    assert load(tmp_path / "model").card.context_length == 50
    assert load(tmp_path / "model", max_tokens=20).card.context_length == 20


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (transformers.MPNetConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4), "MPNet"),
        (
            transformers.DebertaV2Config(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
            "Deb",
        ),
    ],
)
def test_a_class_that_never_calls_the_interface_is_refused_by_its_name(
    tmp_path: Path, config: transformers.PreTrainedConfig, name: str
) -> None:
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    with pytest.raises(ModelLoadError, match=f"{name}.*never calls Transformers' AttentionInterface") as refused:
        load(tmp_path / "model")
    assert "ModernBERT" in refused.value.message, "what would be served"
    assert "gateway.upstreams" in refused.value.message, "where this one can be"


def test_a_class_whose_packed_numbers_differ_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "model", "bert")
    forward = transformers.models.bert.modeling_bert.BertSelfAttention.forward

    def ignoring(self, hidden_states, attention_mask=None, **kwargs):  # type: ignore[no-untyped-def]
        hidden, weights = forward(self, hidden_states, attention_mask, **kwargs)
        return (hidden * 1.01 if "tessera_packing" in kwargs else hidden), weights

    monkeypatch.setattr(transformers.models.bert.modeling_bert.BertSelfAttention, "forward", ignoring)
    with pytest.raises(ModelLoadError, match="other hidden states for packed texts"):
        load(tmp_path / "model")


def test_pickles_and_missing_weights_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "model", "bert", "classifier", labels=["a", "b"])
    weights = tmp_path / "model" / "model.safetensors"
    weights.rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="only pickled weights"):
        load(tmp_path / "model")
    make(tmp_path / "other", "bert")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertForSequenceClassification"]})
    )
    with pytest.raises(ModelLoadError, match=r"lacks \d+ weights.*classifier"):
        load(tmp_path / "other")


def test_a_language_model_must_say_what_it_is_for(tmp_path: Path) -> None:
    make(tmp_path / "model", "qwen3", "decoder")
    with pytest.raises(ModelLoadError, match="`role`"):
        load(tmp_path / "model")
