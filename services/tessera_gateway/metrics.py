"""Metrics of the gateway's upstreams. Labels are names from the settings, so their number is bounded."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from tessera.web.metrics import TimedRequests


class GatewayMetrics:
    """The metrics of all upstreams, in the app's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = TimedRequests(
            registry,
            count=(
                "tessera_gateway_upstream_requests",
                "Requests sent to an upstream, by the status it answered.",
            ),
            seconds=(
                "tessera_gateway_upstream_first_byte_seconds",
                "Time from sending a request to the first byte of the answer's body.",
            ),
            labels=["upstream"],
        )
        self.errors = Counter(
            "tessera_gateway_upstream_errors",
            "Requests that an upstream did not answer to the end: unreachable, cut, timeout, invalid.",
            ["upstream", "reason"],
            registry=registry,
        )
        self.cancelled = Counter(
            "tessera_gateway_cancelled_requests",
            "Requests whose client left before the end of the answer; the upstream was cancelled.",
            ["upstream"],
            registry=registry,
        )
        self._in_flight = Gauge(
            "tessera_gateway_upstream_in_flight",
            "Requests that an upstream is answering.",
            ["upstream"],
            registry=registry,
        )
        self.up = Gauge(
            "tessera_gateway_upstream_up",
            "1 when the upstream's last poll found it ready.",
            ["upstream"],
            registry=registry,
        )

    def answered(self, upstream: str, status: int, seconds: float) -> None:
        """Count an answer whose first byte has arrived after `seconds`."""
        self._answers.add((upstream,), status, seconds)

    def show_in_flight(self, upstream: str, count: Callable[[], int]) -> None:
        """Show from now on how many requests an upstream is answering, as `count` says when it is asked."""
        self._in_flight.labels(upstream).set_function(count)
