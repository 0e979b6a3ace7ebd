"""What the rollout engine did for a batch, as metrics: the difference of its counters before and after.

Everything here is a sum, so that figures of several rounds of a step, or of several workers, are added up;
`with_speed` then says how fast that was. An engine that does not count something has no metric of it.
"""

from collections.abc import Mapping

COUNTED = ("generated_tokens", "steps", "prefill_tokens", "shared_tokens", "prefix_hit_tokens", "preemptions")
GENERATED, ENGINE_S, SPEED = "rollout/generated_tokens", "timing_s/engine", "perf/rollout_tokens_per_s"


def engine_metrics(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """From two `stats()` of an engine."""
    metrics = {f"rollout/{name}": after[name] - before[name] for name in COUNTED if name in after}
    if "busy_s" in after:
        metrics[ENGINE_S] = after["busy_s"] - before["busy_s"]
    return metrics


def with_speed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Tokens per second while the engine computed, where it says how long that was."""
    seconds = metrics.get(ENGINE_S, 0.0)
    return {SPEED: metrics[GENERATED] / seconds} if seconds > 0 else {}
