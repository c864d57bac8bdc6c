"""Metrics of the gateway's upstreams. Labels are names from the settings, so their number is bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tessera.web.metrics import SECONDS


class GatewayMetrics:
    """The metrics of all upstreams, in the app's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tessera_gateway_upstream_requests",
            "Requests sent to an upstream, by the status it answered.",
            ["upstream", "status"],
            registry=registry,
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
        self.first_byte = Histogram(
            "tessera_gateway_upstream_first_byte_seconds",
            "Time from sending a request to the first byte of the answer's body.",
            ["upstream"],
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
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
