"""What answers with one encoder: its card, what its files say, its inputs, and the way to the engine."""

from __future__ import annotations

import array
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram

from tessera.engine.client import EngineClient
from tessera.engine.host import context_of
from tessera.hub.encoder_files import EncoderFiles, read_encoder_files
from tessera.language.metrics import TOKENS
from tessera.language.vectors import floats
from tessera.settings.encoders import EncoderSettings
from tessera.settings.text import TextSettings
from tessera.tokenizer.encoder_tokenizer import EncoderTokenizer
from tessera.web.metrics import SECONDS
from tessera.web.tenant import tenant_var
from tessera.wire.chat import Usage
from tessera.wire.engine import Encode, Encoded, EncoderText, Ready
from tessera.wire.models import Card
from tessera_text.encoders.inputs import EncoderInputs


class EncodingMetrics:
    """How long encoding takes for a user, with the model as the label.

    Args:
        registry: where the histograms are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "tessera_encode_seconds",
            "From the tokens of a request's texts to their vectors or scores.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.tokens = Histogram(
            "tessera_encode_tokens", "Tokens of all texts of a request.", ["model"], buckets=TOKENS, registry=registry
        )


@dataclass(frozen=True)
class EncoderTools:
    """One encoder, as the routes use it.

    Attributes:
        card: its card.
        files: what its files say.
        settings: of this encoder.
        inputs: makes what the engine takes.
        engine: computes.
        index: of the model in the engine.
        metrics: where times are recorded.
    """

    card: Card
    files: EncoderFiles
    settings: EncoderSettings
    inputs: EncoderInputs
    engine: EngineClient
    index: int
    metrics: EncodingMetrics

    async def run(
        self, texts: Sequence[EncoderText], *, priority: int = 0, deadline_s: float | None = None
    ) -> list[array.array[float]]:
        """The engine's values for each text, in order."""
        message = Encode(
            request_id=uuid.uuid4().hex,
            model=self.index,
            texts=list(texts),
            priority=priority,
            tenant=tenant_var.get(),
            deadline_s=deadline_s,
        )
        started = time.perf_counter()
        async with contextlib.aclosing(self.engine.request(message)) as answers:
            async for answer in answers:
                assert isinstance(answer, Encoded)
                self.metrics.seconds.labels(self.card.id).observe(time.perf_counter() - started)
                self.metrics.tokens.labels(self.card.id).observe(tokens_of(texts))
                values, width = floats(answer.rows.data), answer.rows.shape[1]
                return [values[begin : begin + width] for begin in range(0, len(values), width)]
        raise AssertionError("the engine answered nothing")


def tokens_of(texts: Sequence[EncoderText]) -> int:
    """Tokens of all texts."""
    return sum(len(text.token_ids) for text in texts)


def usage_of(*texts: Sequence[EncoderText]) -> Usage:
    """The usage of a request with these texts."""
    count = sum(map(tokens_of, texts))
    return Usage(prompt_tokens=count, total_tokens=count)


def build_encoder_tools(
    ready: Ready, engine: EngineClient, metrics: EncodingMetrics, settings: TextSettings
) -> dict[str, EncoderTools]:
    """Make the tools of each encoder that the engine has loaded, by the model's name."""
    built = {}
    for index, (card, directory, encoder) in enumerate(
        zip(ready.cards, ready.directories, settings.encoders, strict=True)
    ):
        files = read_encoder_files(Path(directory), encoder)
        tokenizer = EncoderTokenizer(Path(directory), lowercase=files.lowercase)
        inputs = EncoderInputs(tokenizer, files, encoder, settings.encoder_engine, context_of(card))
        built[card.id] = EncoderTools(card, files, encoder, inputs, engine, index, metrics)
    return built
