"""How long generation takes for a user: Prometheus histograms with the field's names.

Times are measured in the service, so they include the way to the engine and back. Does not know what is generated.
"""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram

# Upper bounds of the histograms' buckets, in seconds and in tokens.
FIRST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
WHOLE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
TOKENS = (1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072)


class GenerationMetrics:
    """The histograms of one service, with the model as their label.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"tessera_{name}", says, ["model"], buckets=buckets, registry=registry)

        self.first = histogram("time_to_first_token_seconds", "From a sequence's arrival to its first token.", FIRST_S)
        self.between = histogram("inter_token_latency_seconds", "Between two tokens of a sequence.", BETWEEN_S)
        self.whole = histogram("e2e_request_latency_seconds", "From a sequence's arrival to its last token.", WHOLE_S)
        self.prompted = histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.generated = histogram("request_generation_tokens", "Tokens that were generated for a prompt.", TOKENS)
        self.ended = Counter(
            "tessera_requests_ended",
            "Sequences by how they ended: stop, length, or unfinished (an error, or a client that left).",
            ["model", "reason"],
            registry=registry,
        )


class GenerationTimer:
    """Times one sequence, from entering the context to leaving it.

    Args:
        metrics: where the times are recorded.
        model: the label of the metrics.
        prompt_tokens: number of tokens of the prompt.

    Attributes:
        reason: why the sequence ended; set by the caller, None while it has not ended.
    """

    def __init__(self, metrics: GenerationMetrics, model: str, prompt_tokens: int) -> None:
        self._metrics, self._model = metrics, model
        self._prompt_tokens = prompt_tokens
        self._started = self._last = time.perf_counter()
        self._tokens = 0
        self.reason: str | None = None

    def __enter__(self) -> GenerationTimer:
        self._started = time.perf_counter()
        return self

    def record(self, tokens: int) -> None:
        """Record tokens that came at once. The time since the tokens before is divided equally among them."""
        if not tokens:
            return
        now = time.perf_counter()
        if self._tokens == 0:
            self._metrics.first.labels(self._model).observe(now - self._started)
        else:
            for _ in range(tokens):
                self._metrics.between.labels(self._model).observe((now - self._last) / tokens)
        self._last = now
        self._tokens += tokens

    def __exit__(self, *_: object) -> None:
        self._metrics.ended.labels(self._model, self.reason or "unfinished").inc()
        self._metrics.prompted.labels(self._model).observe(self._prompt_tokens)
        self._metrics.generated.labels(self._model).observe(self._tokens)
        if self.reason is not None:
            self._metrics.whole.labels(self._model).observe(time.perf_counter() - self._started)
