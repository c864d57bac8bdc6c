"""Prometheus metrics, in a registry of each app and never in the library's global one.

The metrics of an engine come by name in its `Metrics` messages, so this module does not list them.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class HTTPMetrics:
    """The metrics of requests, the same for every app."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tessera_http_requests",
            "Requests by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "tessera_http_request_seconds",
            "Time from request to the last byte.",
            ["method", "route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("tessera_http_requests_in_flight", "Requests being answered.", registry=registry)


class ReportedMetrics:
    """Metrics whose names and values another process reports; shows the latest value of each.

    A name that ends in `_total` is a counter, which begins again when that process does; others are gauges.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self.prefix = prefix
        self.values: dict[str, float] = {}
        registry.register(self)

    def update(self, values: dict[str, float]) -> None:
        """Replace the values of the names in `values`."""
        self.values.update(values)

    def collect(self) -> Iterable[Metric]:
        """The metrics, for the registry."""
        for name, value in self.values.items():
            says = f"Last reported {name.replace('_', ' ')}."
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"{self.prefix}_{name}", says, value=value)
