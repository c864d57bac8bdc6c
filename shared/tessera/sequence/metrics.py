"""Metrics of a sequence engine: queue, cache by tier, speculation, and the seconds that each stage of steps takes."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.engine.stages import StageTimer
from tessera.sequence.scheduler import Scheduler


@dataclass(frozen=True)
class EngineCounters:
    """Counters that the engine keeps itself, since its start unless stated otherwise.

    Attributes:
        steps: Steps computed.
        graph_steps: Steps computed as a CUDA graph.
        batch_tokens: Positions of the last step.
        computed_tokens: Positions of all steps.
        sampled_tokens: Tokens sampled.
        forced_tokens: Tokens that a grammar forced, which were not sampled.
        grammars_compiled: Grammars compiled.
        integrity_faults: Times that the cache was found inconsistent.
    """

    steps: int
    graph_steps: int
    batch_tokens: int
    computed_tokens: int
    sampled_tokens: int
    forced_tokens: int
    grammars_compiled: int
    integrity_faults: int


def metrics_of(scheduler: Scheduler, counters: EngineCounters, stages: StageTimer) -> dict[str, float]:
    """Return values by metric name; those that end in `_total` only grow."""
    cache, speculation = scheduler.cache, scheduler.speculation
    allocator = cache.allocator
    return {
        "requests_running": len(scheduler.running),
        "requests_waiting": len(scheduler.intake),
        "grammars_compiled_total": counters.grammars_compiled,
        "kv_pages_capacity": allocator.pages,
        "kv_pages_used": allocator.used - cache.idle,
        "kv_cache_usage_ratio": (allocator.used - cache.idle) / allocator.pages,
        "kv_pages_cached": cache.cached_pages,
        "kv_pages_idle": cache.idle,
        "kv_pages_pinned": cache.pinned,
        "host_pages_capacity": cache.host.slots,
        "host_pages_used": cache.host.used,
        "prefix_cache_hit_tokens_device_total": cache.hit_tokens["device"],
        "prefix_cache_hit_tokens_host_total": cache.hit_tokens["host"],
        "prefix_cache_queried_tokens_total": cache.queried_tokens,
        "evicted_pages_total": cache.evicted_pages,
        "integrity_faults_total": counters.integrity_faults,
        "preemptions_total": scheduler.preemptions,
        "fair_preemptions_total": scheduler.fair_preemptions,
        "computed_tokens_total": counters.computed_tokens,
        "sampled_tokens_total": counters.sampled_tokens,
        "forced_tokens_total": counters.forced_tokens,
        "steps_total": counters.steps,
        "graph_steps_total": counters.graph_steps,
        "batch_tokens": counters.batch_tokens,
        "draft_tokens_total": speculation.drafted if speculation is not None else 0,
        "accepted_tokens_total": speculation.accepted if speculation is not None else 0,
        **stages.metrics(),
    }
