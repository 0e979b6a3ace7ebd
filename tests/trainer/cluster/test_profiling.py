"""Profiles and the trace of a run whose workers and agent loops are processes of their own."""

import gzip
import json
from pathlib import Path

from tests.trainer.cluster.conftest import differences, lines_of
from tests.trainer.conftest import GRPO, jsonl


def test_chosen_ranks_leave_a_profile_and_all_processes_a_trace(run):
    keys = [*GRPO, "trainer.total_training_steps=2"]
    ranks = ["actor_rollout_ref.actor.profiler.ranks=[1]", "global_profiler.steps=[2]"]
    run(2, *keys, *ranks, "trainer.default_local_dir=profiled")
    (trace,) = Path("profiled/profiles").rglob("*.gz")
    assert trace.name == "actor_rollout_ref-1.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert "ActorRolloutRefWorker.update_actor" in (event["name"] for event in events)
    assert len({event["tid"] for event in events if event["name"] == "aten::mm"}) > 1, "also the engine's thread"
    spans = {path.stem: jsonl(path) for path in Path("profiled/trace").iterdir()}
    assert set(spans) == {"controller", "global_pool-0", "global_pool-1", "agents-0"}
    assert [one["step"] for one in spans["controller"] if one["name"] == "step"] == [1, 2]
    for name in ("global_pool-0", "global_pool-1"):
        calls = [one["name"] for one in spans[name] if one["name"].endswith(".update_actor")]
        assert calls == 2 * ["ActorRolloutRefWorker.update_actor"]
    waits = [one for one in spans["agents-0"] if "wait" in one]
    (_, step) = (one for one in spans["controller"] if one["name"] == "step")
    assert waits and all(one["start"] >= step["start"] for one in waits), "waits of other steps are not recorded"
    run(2, *keys, "trainer.default_local_dir=plain")
    assert not differences(lines_of("plain"), lines_of("profiled"))
