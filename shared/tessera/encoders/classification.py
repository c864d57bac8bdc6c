"""The outputs of classifiers, and of language models that answer yes or no.

A classifier's head is the code of its own class in Transformers: the class runs with its base model replaced by one
that returns hidden states that were computed already. Which of them the head reads (the first token's, the last
token's, or all) is found by trying, because no configuration says it. Shape letters: T tokens of the row, N texts, L
tokens of a text, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from tessera.wire.engine import EncoderText

Reads = Literal["first", "last", "all"]
TRIED_TOKENS = 5


class ComputedBase(torch.nn.Module):
    """Takes the place of a classifier's base model and returns the hidden states that it was given.

    Args:
        base: the base model, whose pooler it keeps.

    Attributes:
        hidden_NLH: the hidden states to return.
    """

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__()
        self.pooler = getattr(base, "pooler", None)
        self.hidden_NLH = torch.empty(0)

    def forward(self, *_: Any, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """The output of a base model, with the pooler's result where the model has a pooler."""
        pooled = None if self.pooler is None else self.pooler(self.hidden_NLH)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=self.hidden_NLH, pooler_output=pooled)


class ClassifierHead:
    """The head of a sequence classifier.

    Args:
        classifier: the whole model. Its base model is replaced; take `base` from it before.
    """

    def __init__(self, classifier: PreTrainedModel) -> None:
        self._classifier = classifier
        self._base = ComputedBase(getattr(classifier, classifier.base_model_prefix))
        setattr(classifier, classifier.base_model_prefix, self._base)
        # Heads of decoders look for the last token that is no padding; here no token is.
        classifier.config.get_text_config().pad_token_id = -1
        self.reads: Reads = self._find_reads()

    def __call__(self, hidden_TH: torch.Tensor, texts: Sequence[EncoderText]) -> torch.Tensor:
        """The outputs (logits) for the texts of a row, float32 [N, labels]."""
        lengths = [len(text.token_ids) for text in texts]
        if self.reads == "all":
            return torch.cat([self._run(part.unsqueeze(0)) for part in torch.split(hidden_TH, lengths)])
        ends = torch.cumsum(torch.tensor(lengths), 0)
        rows = ends - 1 if self.reads == "last" else ends - torch.tensor(lengths)
        return self._run(hidden_TH[rows.to(hidden_TH.device)].unsqueeze(1))

    def _run(self, hidden_NLH: torch.Tensor) -> torch.Tensor:
        self._base.hidden_NLH = hidden_NLH
        shape, device = hidden_NLH.shape[:2], hidden_NLH.device
        ids, mask = (
            torch.zeros(shape, dtype=torch.long, device=device),
            torch.ones(shape, dtype=torch.long, device=device),
        )
        logits: torch.Tensor = self._classifier(input_ids=ids, attention_mask=mask).logits
        return logits.float()

    @torch.inference_mode()
    def _find_reads(self) -> Reads:
        config, weight = self._classifier.config.get_text_config(), next(self._classifier.parameters())
        hidden = torch.randn(2, TRIED_TOKENS, config.hidden_size, generator=torch.Generator().manual_seed(0))
        hidden = hidden.to(device=weight.device, dtype=weight.dtype)
        whole = self._run(hidden)
        if torch.allclose(self._run(hidden[:, :1]), whole, atol=1e-5, rtol=1e-3):
            return "first"
        if torch.allclose(self._run(hidden[:, -1:]), whole, atol=1e-5, rtol=1e-3):
            return "last"
        return "all"


class YesNoHead:
    """How much likelier "yes" is than "no" as the next token: the difference of their logits, whose sigmoid is the
    probability of "yes" among the two.

    Args:
        output_VH: the output layer's weights, one row for each token.
        yes_id: the token "yes".
        no_id: the token "no".
    """

    def __init__(self, output_VH: torch.Tensor, yes_id: int, no_id: int) -> None:
        self._difference_H = (output_VH[yes_id].float() - output_VH[no_id].float()).clone()

    def __call__(self, hidden_TH: torch.Tensor, texts: Sequence[EncoderText]) -> torch.Tensor:
        """The differences for the texts of a row, float32 [N, 1]."""
        ends = torch.cumsum(torch.tensor([len(text.token_ids) for text in texts]), 0)
        return (hidden_TH[ends.to(hidden_TH.device) - 1].float() @ self._difference_H).unsqueeze(1)
