"""Whatever fails while a worker ends what generating has started, the rest is ended too, in order; and time limits."""

from types import SimpleNamespace

import pytest

from burnish.config import PPOConfig
from burnish.errors import DeadlineError
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker
from burnish.workers.agent_loop import AgentLoopWorker
from burnish.workers.rollouts import Rollouts


class Part:
    def __init__(self, name, ended, fails):
        self.name, self.ended, self.fails = name, ended, fails

    def close(self):
        self.ended.append(self.name)
        if self.fails:
            raise DeadlineError(f"{self.name} hangs")


@pytest.mark.parametrize("late", ["", "runner", "scoring"])
def test_trajectories_end_before_those_that_score_and_the_engine_ends_last(late):
    ended = []
    parts = {name: Part(name, ended, name == late) for name in ("scoring", "runner", "replica")}
    rollouts = Rollouts.__new__(Rollouts)
    rollouts.scoring, rollouts.runner = parts["scoring"], parts["runner"]
    config = SimpleNamespace(agents_apart=False)
    worker = SimpleNamespace(config=config, rollouts=rollouts, replica=parts["replica"])
    if late:
        with pytest.raises(DeadlineError, match=f"{late} hangs"):
            ActorRolloutRefWorker.close(worker)
    else:
        ActorRolloutRefWorker.close(worker)
    assert ended == ["runner", "scoring", "replica"]


def test_an_agent_worker_is_closed_once_also_where_that_fails():
    ended = []
    worker = AgentLoopWorker(SimpleNamespace(), 1)
    worker.rollouts = Part("rollouts", ended, True)
    with pytest.raises(DeadlineError, match="rollouts hangs"):
        worker.close()
    worker.close()
    assert ended == ["rollouts"]


@pytest.mark.parametrize(("staleness", "limit"), [(0, 10.0), (2, 30.0)])
def test_rounds_that_share_the_engine_have_their_time_together(staleness, limit):
    config = PPOConfig()
    config.actor_rollout_ref.rollout.timeout = 10.0
    config.trainer.async_rollout.enable, config.trainer.async_rollout.staleness = True, staleness
    rollouts = Rollouts.__new__(Rollouts)
    rollouts.config = config
    assert rollouts.deadline_s == limit
