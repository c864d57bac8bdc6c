"""One forward pass of a decoder: through the model's own layers, or through a decoder that was compiled for a CPU.

Knows how many CPU threads a pass gets. Knows nothing about requests: it computes what `StepInputs` hold.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tessera.models.attention import AttentionBatch
from tessera.sequence.batch import TopLogit
from tessera.sequence.runner.compiled.decoder import CompiledDecoder, spared_threads
from tessera.sequence.runner.cpu_threads import ThreadShare
from tessera.sequence.runner.step_inputs import StepInputs


class ModelLayers:
    """The model's own layers, with Tessera's attention inside.

    Args:
        model: a decoder whose attention modules have their caches attached.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def run(
        self,
        given: torch.Tensor,
        position_1T: torch.Tensor,
        batch: AttentionBatch,
        rows_R: torch.Tensor,
        *,
        hidden: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, TopLogit | None]:
        """One pass; the arguments and results are those of `CompiledDecoder.run`, without the likeliest tokens."""
        output = self._model(
            **{"inputs_embeds" if given.is_floating_point() else "input_ids": given},
            position_ids=position_1T,
            use_cache=False,
            logits_to_keep=rows_R,
            tessera_batch=batch,
            output_hidden_states=hidden,
        )
        return output.logits[0], output.hidden_states[-1][0] if hidden else None, None


class Forward:
    """The forward pass of one decoder.

    Args:
        layers: what computes the pass.
        threads: chooses the number of CPU threads of each pass.
    """

    def __init__(self, layers: ModelLayers | CompiledDecoder, threads: ThreadShare) -> None:
        self._layers = layers
        self.threads = threads

    @property
    def is_compiled(self) -> bool:
        """Whether whole steps run as compiled CPU code."""
        return isinstance(self._layers, CompiledDecoder)

    def compute(
        self, inputs: StepInputs, given: torch.Tensor, *, hidden: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, TopLogit | None]:
        """Run one pass.

        Args:
            inputs: positions, slots, pages and the rows whose logits are wanted.
            given: int64 token ids [1, T], or float input embeddings [1, T, C].
            hidden: whether the last hidden states are wanted too.

        Returns:
            Logits [R, V]; hidden states [T, C] or None; and the likeliest token of each row, where the pass finds it.
        """
        with self.threads.step(spared_threads(given.shape[1]) if self.is_compiled else 0):
            return self._layers.run(given, inputs.position_1T, inputs.batch, inputs.rows_R, hidden=hidden)

    def decode(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [R, V] of a pass over token ids."""
        return self.compute(inputs, inputs.ids_1T, hidden=False)[0]
