"""What the rollout engine and the retriever did for a batch, as metrics: their counters after it, less those before.

Everything here is a sum, so that counts of several rounds of a step are added up; `with_speed` then adds how fast that
was. An engine that does not count something has no metric of it; a failure has one only where there was any.

Replicas count each for itself, and work at the same time. Their counts are added up too, but the seconds are those of
the one that was busy longest: tokens per second are then those of all replicas together.
"""

from collections.abc import Mapping, Sequence

COUNTED = ("generated_tokens", "steps", "prefill_tokens", "shared_tokens", "prefix_hit_tokens", "preemptions")
FAILURES = ("replica_restarts", "requests_again")  # see rollout/replacing.py
REQUESTS, RETRIEVAL_S = "retrieval/requests", "retrieval/request_seconds"
GENERATED, ENGINE_S, SPEED = "rollout/generated_tokens", "timing_s/engine", "perf/rollout_tokens_per_s"


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From two `stats()` of an engine."""
    metrics = {f"rollout/{name}": after[name] - before[name] for name in COUNTED if name in after}
    if "busy_s" in after:
        metrics[ENGINE_S] = after["busy_s"] - before["busy_s"]
    failed = {f"failures/{name}": after.get(name, 0.0) - before.get(name, 0.0) for name in FAILURES}
    return metrics | {name: count for name, count in failed.items() if count}


def replica_metrics(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """From two `stats()` of each replica, in the same order."""
    each = [engine_metrics(*counters) for counters in zip(before, after, strict=True)]
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: (max if name == ENGINE_S else sum)(metrics.get(name, 0.0) for metrics in each) for name in names}


def retrieval_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From two `stats()` of a retriever's client; nothing where it was not asked."""
    counts = {name: value - before.get(name, 0.0) for name, value in after.items()}
    if not counts.get("queries"):
        return {}
    seconds = counts.pop("seconds")
    return {f"retrieval/{name}": value for name, value in counts.items()} | {RETRIEVAL_S: seconds}


def with_speed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Tokens per second while the engine computed, where it says how long that was, and the time of a retrieval."""
    seconds, requests = metrics.get(ENGINE_S, 0.0), metrics.get(REQUESTS, 0.0)
    speed = {SPEED: metrics[GENERATED] / seconds} if seconds > 0 else {}
    return speed | ({"retrieval/seconds_per_request": metrics[RETRIEVAL_S] / requests} if requests > 0 else {})
