"""Several processes on one GPU, over NCCL: the metrics of one process, and failures inside a collective. NCCL 2.30 or
later is needed (LD_PRELOAD its libnccl.so.2 where torch brings an older one)."""

import pytest
import torch

from burnish.controller.processes.cluster import SHARING_NCCL, nccl_version
from burnish.errors import WorkersLate
from tests.trainer.cluster.conftest import differences, lines_of
from tests.trainer.cluster.struck import STRUCK, strike
from tests.trainer.conftest import GRPO, PPO, events

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or nccl_version() < SHARING_NCCL, reason="needs NCCL 2.30"),
    pytest.mark.parametrize("executor", ["processes"], indirect=True),
]
ON_GPU = ["trainer.device=cuda", "actor_rollout_ref.model.dtype=float32", "actor_rollout_ref.rollout.dtype=float32"]
HYBRID = "actor_rollout_ref.actor.fsdp_config.fsdp_size=2"
ULYSSES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
RUN = [*ON_GPU, *GRPO, "trainer.save_freq=1", "trainer.total_training_steps=3"]


def sharing(workers):
    return f"trainer.processes_per_gpu={workers}"


@pytest.mark.parametrize(
    ("workers", "keys"),
    [(2, []), (2, [ULYSSES]), (4, [HYBRID]), (4, [HYBRID, ULYSSES])],
    ids=["fsdp", "ulysses", "hybrid", "both"],
)
def test_metrics_are_those_of_one_process(run, workers, keys):
    run(0, *RUN, "trainer.default_local_dir=one")
    run(workers, *RUN, *keys, sharing(workers), "trainer.default_local_dir=several")
    assert not differences(lines_of("one"), lines_of("several"))


def test_ppo_with_a_critic(run):
    both = [*ON_GPU, *PPO, "critic.model.dtype=float32", "trainer.total_training_steps=2"]
    run(0, *both, "trainer.default_local_dir=one")
    run(2, *both, sharing(2), "trainer.default_local_dir=several")
    assert not differences(lines_of("one"), lines_of("several"))


def test_saved_on_two_it_resumes_on_one_and_on_four(run):
    run(2, *RUN, sharing(2), "trainer.total_training_steps=2")
    run(4, *RUN, sharing(4))
    run(0, *RUN, "trainer.default_local_dir=one")
    assert not differences(lines_of("one"), lines_of("run"))


def test_killed_in_an_update_it_resumes_from_the_last_checkpoint(run, struck):
    run(0, *RUN, "trainer.default_local_dir=one")
    strike("update", rank=1, step=3)
    struck(2, *RUN, sharing(2), "trainer.max_restarts=1")
    assert STRUCK.exists() and not differences(lines_of("one"), lines_of("run"))
    (event,) = events("restart")
    assert event["checkpoint"] == 2 and "rank 1 of 2" in event["error"]


def test_rank_that_hangs_in_an_update_is_named_with_its_stack(struck):
    strike("update", rank=1, step=2, how="sleep")
    with pytest.raises(WorkersLate, match=r"(?s)rank 1 of 2 .*time\.sleep\(1000\)"):
        struck(2, *RUN, sharing(2), "trainer.max_restarts=0", "trainer.worker_timeout=40")
