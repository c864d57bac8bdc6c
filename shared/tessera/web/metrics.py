"""Prometheus metrics, in a registry of each app and never in the library's global one.

The metrics of an engine come by name in its `Metrics` messages, so this module does not list them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class TimedRequests:
    """A counter by labels and status and a histogram of seconds by labels, as one collector.

    To count takes a tenth of what the library's counters and histograms take, which matters once a request: there is no
    lock, because all requests are counted in the thread of the event loop.

    Args:
        registry: where both are registered.
        count: name and help of the counter.
        seconds: name and help of the histogram.
        labels: names of the labels.
    """

    def __init__(
        self, registry: CollectorRegistry, *, count: tuple[str, str], seconds: tuple[str, str], labels: Sequence[str]
    ) -> None:
        self._count, self._seconds, self._labels = count, seconds, list(labels)
        self._counts: dict[tuple[tuple[str, ...], int], int] = {}
        self._buckets: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, labels: tuple[str, ...], status: int, seconds: float) -> None:
        """Count a request, and time it."""
        key = labels, status
        self._counts[key] = self._counts.get(key, 0) + 1
        buckets = self._buckets.get(labels)
        if buckets is None:
            buckets = self._buckets[labels] = [0] * (len(SECONDS) + 1)
            self._sums[labels] = 0.0
        buckets[bisect_left(SECONDS, seconds)] += 1
        self._sums[labels] += seconds

    def collect(self) -> Iterable[Metric]:
        """The metrics, for the registry."""
        counter = CounterMetricFamily(*self._count, labels=[*self._labels, "status"])
        for (labels, status), number in list(self._counts.items()):
            counter.add_metric([*labels, str(status)], number)
        yield counter
        histogram = HistogramMetricFamily(*self._seconds, labels=self._labels)
        for labels, buckets in list(self._buckets.items()):
            bounds = [*map(floatToGoString, SECONDS), "+Inf"]
            cumulative = list(zip(bounds, map(float, accumulate(buckets)), strict=True))
            histogram.add_metric(labels, cumulative, self._sums[labels])
        yield histogram


class HTTPMetrics:
    """The metrics of requests, the same for every app."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.in_flight = 0
        """Requests being answered."""
        self.requests = TimedRequests(
            registry,
            count=("tessera_http_requests", "Requests by method, route and status."),
            seconds=("tessera_http_request_seconds", "Time from request to the last byte."),
            labels=["method", "route"],
        )
        gauge = Gauge("tessera_http_requests_in_flight", "Requests being answered.", registry=registry)
        gauge.set_function(lambda: self.in_flight)


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
