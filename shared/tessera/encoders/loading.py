"""Loads an encoder: Transformers' class on our attention, and a trial against the class's own forward pass.

The trial is how anything is known about an architecture. Two texts are run alone by the model as Transformers has it,
then packed into one row on our attention; where both agree, the model is served. A class that never calls
`AttentionInterface` (MPNet, DeBERTa) would mix the texts of a row, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from tessera.encoders import packing
from tessera.encoders.classification import ClassifierHead, YesNoHead
from tessera.encoders.encoder import Encoder, Head, PackedModel
from tessera.encoders.packing import Packing
from tessera.encoders.pooling import EmbeddingHead
from tessera.errors import ModelLoadError
from tessera.hub.encoder_files import TASKS, EncoderFiles, read_encoder_files
from tessera.models.loading import load_pretrained, make_dummy, read_config
from tessera.settings.encoders import EncoderSettings
from tessera.tokenizer.files import vocabulary_of
from tessera.wire.engine import EncoderText
from tessera.wire.models import Card

SHORT_TOKENS, LONG_TOKENS = 5, 24
"""Tokens of the two texts of the trial; the longer one is longer than a window of the model if that has one."""
LONGEST_TRIAL = 1024
"""Most tokens of the trial: a longer window is not tried."""
TOLERANCE = {torch.float32: 1e-4}
"""Largest difference of hidden states by dtype, relative to their size."""
LOW_PRECISION_TOLERANCE = 3e-2
YES, NO = "yes", "no"


def load_encoder(
    directory: Path,
    card: Card,
    settings: EncoderSettings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    dummy: bool = False,
) -> Encoder:
    """Load a directory as its settings and its files say.

    Args:
        directory: the model directory.
        card: of the directory.
        settings: of this encoder.
        device: where it runs.
        dtype: of its weights.
        dummy: whether its weights are random values made on the device.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be run packed; the message says why.
    """
    files = read_encoder_files(directory, settings)
    packing.register()
    whole = _load(directory, files, device=device, dtype=dtype, dummy=dummy)
    head: Head
    if files.role == "embedding":
        model, head = on_packed_attention(whole, directory), EmbeddingHead(files, directory, device)
    elif files.yes_no:
        model = on_packed_attention(whole.get_decoder(), directory)
        head = YesNoHead(whole.get_output_embeddings().weight, *_yes_no_ids(directory))
    else:
        model = on_packed_attention(getattr(whole, whole.base_model_prefix), directory)
        head = ClassifierHead(whole)  # after the trial, because it takes the base model's place
    context = _context(model, files)
    card = msgspec.structs.replace(card, id=settings.name or card.id, tasks=TASKS[files.role], context_length=context)
    return Encoder(card, directory, files, model, head)


def on_packed_attention(model: PreTrainedModel, directory: Path) -> PackedModel:
    """Put a model on our attention, and find the position at which its texts begin.

    Raises:
        ModelLoadError: packed texts do not get the hidden states that they get alone; names the class.
    """
    texts = _trial_texts(model)
    with torch.inference_mode():
        alone = [model(input_ids=torch.tensor([text.token_ids], device=model.device)) for text in texts]
        expected = torch.cat([found.last_hidden_state[0] for found in alone])
        model.set_attn_implementation(packing.NAME)
        off = []
        for first in _first_positions(model):
            packed = PackedModel(model, first)
            found = Packing.of([len(text.token_ids) for text in texts], model.device)
            try:
                hidden = packed.hidden(texts, found)
            except ModelLoadError as error:
                raise ModelLoadError(f"{directory}: {error.message}; it cannot be served") from error
            if not found.calls:
                raise ModelLoadError(
                    f"{directory}: {type(model).__name__} never calls Transformers' AttentionInterface, so texts that "
                    "share a step would be mixed; it cannot be served here. Take a model of another class (BERT, "
                    "RoBERTa, XLM-RoBERTa, ModernBERT, DistilBERT, Qwen3), or run this one in a server of its own, "
                    "such as Text Embeddings Inference, and name that in gateway.upstreams"
                )
            off.append(float((hidden - expected).float().norm() / expected.float().norm()))
            if off[-1] <= TOLERANCE.get(expected.dtype, LOW_PRECISION_TOLERANCE):
                return packed
    raise ModelLoadError(
        f"{directory}: {type(model).__name__} computes other hidden states for packed texts than for single ones "
        f"(relative difference {min(off):.1e}); it cannot be served"
    )


def _load(
    directory: Path, files: EncoderFiles, *, device: torch.device, dtype: torch.dtype, dummy: bool
) -> PreTrainedModel:
    auto_class: Any = AutoModel
    if files.yes_no:
        auto_class = AutoModelForCausalLM
    elif files.role != "embedding":
        auto_class = AutoModelForSequenceClassification
    if dummy:
        return make_dummy(auto_class, read_config(directory), device=device, dtype=dtype)
    # Embeddings do not read the pooler, which many directories lack.
    unused = ("pooler.",) if files.role == "embedding" else ()
    model: PreTrainedModel = load_pretrained(auto_class, directory, device=device, dtype=dtype, unused=unused)
    return model


def _trial_texts(model: PreTrainedModel) -> list[EncoderText]:
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or 0
    most = int(getattr(config, "max_position_embeddings", LONGEST_TRIAL))
    longer = max(LONG_TOKENS, window + LONG_TOKENS) if window < LONGEST_TRIAL else LONG_TOKENS
    lengths = [SHORT_TOKENS, min(longer, max(SHORT_TOKENS, most - SHORT_TOKENS))]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size // 2, config.vocab_size, (sum(lengths),), generator=generator)
    ids[ids == (config.pad_token_id if config.pad_token_id is not None else -1)] = config.vocab_size // 2 - 1
    return [EncoderText(part.tolist()) for part in torch.split(ids, lengths)]


def _first_positions(model: PreTrainedModel) -> Iterator[int]:
    yield 0
    padding = model.config.get_text_config().pad_token_id
    if padding is not None and padding >= 0:
        yield padding + 1


def _context(model: PackedModel, files: EncoderFiles) -> int:
    most = int(model.model.config.get_text_config().max_position_embeddings) - model.first_position
    return min(most, files.max_tokens or most)


def _yes_no_ids(directory: Path) -> tuple[int, int]:
    vocabulary = vocabulary_of(directory)
    if YES not in vocabulary or NO not in vocabulary:
        raise ModelLoadError(f"{directory} has no tokens {YES!r} and {NO!r}, so it cannot rerank by answering")
    return vocabulary[YES], vocabulary[NO]
