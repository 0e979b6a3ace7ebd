"""What several engines did, as the metrics of one batch."""

import pytest

from burnish.workers.rollout_metrics import engine_metrics, replica_metrics, with_speed


def counters(tokens, steps, seconds):
    return {"generated_tokens": tokens, "steps": steps, "busy_s": seconds, "running": 1, "tokens_per_s": 9.0}


def test_counts_of_replicas_are_added_and_their_seconds_run_beside_one_another():
    before = [counters(10, 4, 2.0), counters(0, 0, 1.0)]
    after = [counters(40, 9, 5.0), counters(90, 7, 7.0)]
    metrics = replica_metrics(before, after)
    assert metrics == {"rollout/generated_tokens": 120, "rollout/steps": 12, "timing_s/engine": 6.0}
    assert with_speed(metrics) == {"perf/rollout_tokens_per_s": 20.0}  # of all of them together


def test_one_replica_is_one_engine():
    before, after = counters(10, 4, 2.0), counters(40, 9, 5.0)
    assert replica_metrics([before], [after]) == engine_metrics(before, after)
    assert replica_metrics([{"generated_tokens": 1}], [{"generated_tokens": 3}]) == {"rollout/generated_tokens": 2}
    assert replica_metrics([], []) == {}


def test_replicas_are_compared_with_themselves():
    with pytest.raises(ValueError, match="shorter"):
        replica_metrics([{}, {}], [{}])
