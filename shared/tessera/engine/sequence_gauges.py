"""What a sequence engine tells about itself: queue, cache by tier, speculation, and where the time of steps goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera.engine.sequence import SequenceEngine


def gauges_of(engine: SequenceEngine) -> dict[str, float]:
    """Values by name; those of things that only grow are since the start of the engine."""
    cache = engine.scheduler.cache
    allocator = cache.allocator
    return {
        "requests_running": len(engine.scheduler.running),
        "requests_waiting": len(engine.scheduler.waiting) + len(engine.unseen) + len(engine.unwritten),
        "grammars_compiled": engine.grammars.compiled if engine.grammars is not None else 0,
        "kv_pages_total": allocator.pages,
        "kv_pages_used": allocator.used - cache.idle,
        "kv_pages_cached": cache.cached_pages,
        "kv_pages_idle": cache.idle,
        "kv_pages_pinned": cache.pinned,
        "host_pages_total": cache.host.slots,
        "host_pages_used": cache.host.used,
        "prefix_hit_tokens_device": cache.hit_tokens["device"],
        "prefix_hit_tokens_host": cache.hit_tokens["host"],
        "prefix_asked_tokens": cache.asked_tokens,
        "evicted_pages": cache.evicted_pages,
        "integrity_faults": engine.integrity_faults,
        "preemptions": engine.scheduler.preemptions,
        "computed_tokens": engine.computed_tokens,
        "sampled_tokens": engine.sampled_tokens,
        "forced_tokens": engine.forced_tokens,
        "steps": engine.steps,
        "graph_steps": engine.runner.graph_steps,
        "batch_tokens": engine.batch_tokens,
        "guessed_tokens": engine.speculation.guessed if engine.speculation is not None else 0,
        "confirmed_tokens": engine.speculation.confirmed if engine.speculation is not None else 0,
        **engine.stages.gauges(),
    }
