"""Classifies and moderates texts by a sequence classifier."""

from __future__ import annotations

import time
import uuid

from tessera.errors import InvalidRequestError
from tessera.wire.ranking import (
    ClassifiedTexts,
    ClassifyRequest,
    Moderation,
    ModerationList,
    ModerationRequest,
    TextClass,
)
from tessera_text.encoders.inputs import cut_of
from tessera_text.encoders.scores import activated
from tessera_text.encoders.tools import EncoderTools, usage_of


async def classify(tools: EncoderTools, request: ClassifyRequest) -> ClassifiedTexts:
    """The likeliest label and the probabilities of all labels, for each text.

    Raises:
        InvalidRequestError: there are no texts, or one is empty.
        ContextLengthError: a text is too long and is not to be cut.
    """
    given = [request.input] if isinstance(request.input, str) else request.input
    if not given:
        raise InvalidRequestError("`input` has no text", param="input")
    cut = cut_of(None, request.truncate_prompt_tokens, tools.inputs.context)
    texts = await tools.inputs.texts(given, cut, param="input")
    rows = await tools.run(texts, priority=request.priority, deadline_s=request.deadline_s)
    data = []
    for index, row in enumerate(rows):
        probs = activated(list(row), tools.files.activation)
        best = max(range(len(probs)), key=probs.__getitem__)
        data.append(TextClass(index=index, label=tools.files.labels[best], probs=probs, num_classes=len(probs)))
    return ClassifiedTexts(
        id=f"classify-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=tools.card.id,
        data=data,
        usage=usage_of(texts),
    )


async def moderate(tools: EncoderTools, request: ModerationRequest) -> ModerationList:
    """What the classifier finds in each text; an input in parts is one text. Long texts are cut.

    Raises:
        InvalidRequestError: there are no texts, or one is empty.
    """
    value = [request.input] if isinstance(request.input, str) else request.input
    if not value:
        raise InvalidRequestError("`input` has no text", param="input")
    parts = [part.text for part in value if not isinstance(part, str)]
    given = [part for part in value if isinstance(part, str)]
    if parts and given:
        raise InvalidRequestError("`input` must be texts, or parts of one text, not both", param="input")
    texts = await tools.inputs.texts(
        ["\n".join(parts)] if parts else given, cut_of("END", None, tools.inputs.context), param="input"
    )
    rows = await tools.run(texts)
    return ModerationList(
        id=f"modr-{uuid.uuid4().hex}",
        model=tools.card.id,
        results=[judged(tools, activated(list(row), tools.files.activation)) for row in rows],
    )


def judged(tools: EncoderTools, probs: list[float]) -> Moderation:
    """The categories of a text by the probabilities of its labels.

    A category of several labels has the sum of their probabilities where labels exclude each other, else the largest.
    """
    settings, files = tools.settings, tools.files
    mapping = settings.categories or {label: label for label in files.labels}
    scores: dict[str, float] = {}
    for label, prob in zip(files.labels, probs, strict=True):
        category = mapping.get(label)
        if category is not None:
            before = scores.get(category, 0.0)
            scores[category] = min(1.0, before + prob) if files.activation == "softmax" else max(before, prob)
    categories = {category: value >= settings.threshold for category, value in scores.items()}
    return Moderation(
        flagged=any(categories.values()),
        categories=categories,
        category_scores=scores,
        category_applied_input_types={category: ["text"] for category in scores},
    )
