"""What a sequence engine tells about itself: queue, cache by tier, speculation, and where the time of steps goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera.sequence.engine import SequenceEngine


def metrics_of(engine: SequenceEngine) -> dict[str, float]:
    """Values by name; those that end in `_total` are counted since the start of the engine."""
    cache = engine.scheduler.cache
    allocator = cache.allocator
    return {
        "requests_running": len(engine.scheduler.running),
        "requests_waiting": len(engine.scheduler.waiting) + len(engine.unseen) + len(engine.unwritten),
        "grammars_compiled_total": engine.grammars.compiled if engine.grammars is not None else 0,
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
        "integrity_faults_total": engine.integrity_faults,
        "preemptions_total": engine.scheduler.preemptions,
        "computed_tokens_total": engine.computed_tokens,
        "sampled_tokens_total": engine.sampled_tokens,
        "forced_tokens_total": engine.forced_tokens,
        "steps_total": engine.steps,
        "graph_steps_total": engine.runner.graph_steps,
        "batch_tokens": engine.batch_tokens,
        "draft_tokens_total": engine.speculation.drafted if engine.speculation is not None else 0,
        "accepted_tokens_total": engine.speculation.accepted if engine.speculation is not None else 0,
        **engine.stages.metrics(),
    }
