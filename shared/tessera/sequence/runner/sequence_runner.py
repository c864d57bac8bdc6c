"""Runs a batch of sequences: from chunks of tokens to logits, through a decoder that was loaded before.

Knows nothing about scheduling or sampling: it computes what a `Batch` describes and returns values. Nor does it load:
`tessera.sequence.runner.build` loads, quantizes, compiles and captures.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tessera.device.hardware import Device
from tessera.models.fusion import FusionReport
from tessera.sequence.batch import Batch, StepOutput
from tessera.sequence.runner.decode_graphs import DecodeGraphs
from tessera.sequence.runner.forward import Forward
from tessera.sequence.runner.image_encoder import ImageEncoder
from tessera.sequence.runner.page_storage import PageStorage
from tessera.sequence.runner.step_inputs import fresh_inputs


class SequenceRunner:
    """A loaded decoder with its paged cache, ready to run.

    Args:
        model: the decoder.
        device: where it runs.
        forward: computes a step that is not a graph.
        storage: the pages of keys and values, attached to the model.
        encoder: the vision part of a vision-language model; None for a model without images.
        graphs: decode steps as CUDA graphs; None where none were captured.
        fusion: what was fused when the model was loaded.
        report: seconds of each part of the start, by name.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        device: Device,
        *,
        forward: Forward,
        storage: PageStorage,
        encoder: ImageEncoder | None,
        graphs: DecodeGraphs | None,
        fusion: FusionReport,
        report: dict[str, float],
    ) -> None:
        self.model = model
        self.device = device
        self.forward = forward
        self.storage = storage
        self.encoder = encoder
        self.fusion = fusion
        self.report = report
        self.asynchronous = device.place.type == "cuda"
        self.page_size, self.pages, self.host_pages = storage.page_size, storage.pages, storage.host_pages
        self._graphs = graphs

    @property
    def context_length(self) -> int:
        """Positions that the model was trained for."""
        return context_length_of(self.model)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        return vocabulary_size_of(self.model)

    @property
    def graph_steps(self) -> int:
        """Steps that were computed as a graph since the start."""
        return self._graphs.replayed if self._graphs is not None else 0

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepOutput:
        """Compute the batch's chunks; their keys and values are in the cache afterwards.

        The returned tensors are valid until the next run.
        """
        self.storage.move(batch.transfers)
        if self._graphs is not None and self._graphs.can_run(batch):
            return StepOutput(self._graphs.run(batch), None)
        chunks = batch.chunks
        inputs = fresh_inputs(batch, self.page_size, self.device.place)
        given = inputs.ids_1T
        if any(chunk.request.media is not None for chunk in chunks):
            assert self.encoder is not None
            given = self.encoder.embed(inputs.ids_1T, chunks)
        embeds = any(chunk.request.sampling is None for chunk in chunks)
        logits, hidden_TD, top_logit = self.forward.compute(inputs, given, hidden=embeds)
        scored = logits[inputs.sampled :] if len(logits) > inputs.sampled else None
        sampled_top = top_logit[: inputs.sampled] if top_logit is not None else None
        return StepOutput(logits[: inputs.sampled], hidden_TD, scored, sampled_top)


def context_length_of(model: PreTrainedModel) -> int:
    """Positions that a decoder was trained for."""
    return int(model.config.get_text_config().max_position_embeddings)


def vocabulary_size_of(model: PreTrainedModel) -> int:
    """Number of token ids that a decoder knows."""
    return int(model.config.get_text_config().vocab_size)
