"""Agent loops over replicas make the batch of one process, whatever their number; their end, limits and metrics."""

import asyncio
import copy
import pickle
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from burnish.config import PPOConfig
from burnish.config.model import ModelConfig
from burnish.controller import WorkerPlace
from burnish.controller.dispatch import check_direct
from burnish.errors import AgentError, DeadlineError, RewardError, WorkerError
from burnish.models.loading import load_causal_lm, load_tokenizer
from burnish.rollout.base import Request, Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.native.engine import NativeEngine
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker
from burnish.workers.rollouts import (
    AgentLoopWorker,
    Rollouts,
    RoundSettings,
    engine_metrics,
    replica_metrics,
    share_of,
    with_speed,
)
from burnish.workers.trajectories import BEGUN_ROLLOUTS, GROUPED_ROLLOUTS

SAMPLING = Sampling(max_tokens=12)


class PeerHere:
    """A worker of this process, reached through bytes as one elsewhere would be."""

    def __init__(self, worker, name):
        self.worker, self.name, self.calls = worker, name, []

    async def call(self, method, *args, **kwargs):
        check_direct(ActorRolloutRefWorker, method)
        self.calls.append((method, *args))
        args, kwargs = sent((args, kwargs))
        return sent(await getattr(self.worker, method)(*args, **kwargs))


def sent(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 (our own)


@pytest.fixture(scope="module")
def model(tiny_model):
    module = load_causal_lm(str(tiny_model), ModelConfig(), torch.device("cpu"), "float32")
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)  # far from uniform
    return module, load_tokenizer(str(tiny_model), False)


def engine_of(module, tokenizer):
    engine = NativeEngine(module, tokenizer, max_num_seqs=8, max_model_len=128, blocks=80)
    engine.publish(None, 5)
    return engine


@pytest.fixture
def config(tiny_model):
    config = PPOConfig()
    config.actor_rollout_ref.model.path = str(tiny_model)
    config.data.max_prompt_length, config.data.max_response_length = 64, 16
    config.reward.num_workers, config.reward.timeout = 2, 60.0
    return config


@pytest.fixture
def peers(model):
    workers = [ActorRolloutRefWorker.__new__(ActorRolloutRefWorker) for _ in range(2)]
    for worker in workers:
        worker.engine = EngineLoop(engine_of(copy.deepcopy(model[0]), model[1]))
    yield [PeerHere(worker, f"replica {rank}") for rank, worker in enumerate(workers)]
    for worker in workers:
        worker.engine.close()


@pytest.fixture
def agents(config, peers):
    """`agents(count)`: connected workers, by rank."""
    made = []

    def make(count):
        for rank in range(count):
            worker = AgentLoopWorker(config, 1)
            worker.place = WorkerPlace(rank, count, device="cpu")
            worker.connect(peers)
            made.append(worker)
        return made

    yield make
    for worker in made:
        worker.close()
        worker.close()  # again, to no effect


@contextmanager
def held(peer):
    """Inside this block no step of the replica ends."""
    runner, go_on = peer.worker.engine._engine.runner, threading.Event()
    decoder = runner.decoder
    runner.decoder = lambda *inputs: go_on.wait(120) and decoder(*inputs)
    try:
        yield
    finally:
        runner.decoder = decoder
        go_on.set()


def prompts(count=5, n=3):
    row = {"data_source": "openai/gsm8k", "reward_model": {"style": "rule", "ground_truth": "4"}}
    return [
        row | {"uid": uid, "sample": sample, "raw_prompt": [{"role": "user", "content": f"{uid}+{uid}="}]}
        for uid in range(count)
        for sample in range(n)
    ]


def generated(workers, rows, score):
    split = GROUPED_ROLLOUTS.dispatch(len(workers), rows, RoundSettings(1, SAMPLING, "train", score))
    for worker, call in zip(workers, split.calls, strict=False):
        worker.begin_sequences(*call.args, **call.kwargs)
    return BEGUN_ROLLOUTS.collect(split, [worker.finish_sequences(1) for worker in workers])


def same(one, other):
    assert set(one.batch.keys()) == set(other.batch.keys())
    for name in one.batch.keys():  # noqa: SIM118
        # in another batch sums are rounded otherwise
        torch.testing.assert_close(one.batch[name], other.batch[name], atol=1e-4, rtol=0)
    for name, values in one.non_tensor_batch.items():
        pair = [values.tolist(), other.non_tensor_batch[name].tolist()]
        if name == "score_result":  # which also has how long it took
            pair = [[getattr(result, "score", None) for result in results] for results in pair]
        assert pair[0] == pair[1], name


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_number_of_workers_and_replicas_makes_the_batch_of_one_process(agents, peers, model, config, count):
    here = Rollouts(config, model[1], engine_of(*model))
    here.begin(prompts(), RoundSettings(1, SAMPLING, "train", True))
    expected = here.finish(1)
    here.close()
    workers = agents(count)
    batch = generated(workers, prompts(), True)
    same(batch, expected)
    assert batch.meta_info["metrics"] == {}, "engines are counted on the replicas"
    counted = sum(peer.worker.engine.stats()["generated_tokens"] for peer in peers)
    assert counted == int(batch.batch["response_mask"].sum())
    assert all(len(worker.replicas.router) == 0 for worker in workers)
    places = {}
    for number, peer in enumerate(peers):
        for uid in [call[1].order[0] for call in peer.calls if call[0] == "generate"]:
            places.setdefault(uid, set()).add(number)
    assert {len(found) for found in places.values()} == {1} and set.union(*places.values()) == {0, 1}


def test_validation_forgets_only_its_own_prompts(agents, config):
    """Its prompts have the same uids as those of a round that is on its way."""
    config.trainer.async_rollout.enable, config.trainer.async_rollout.staleness = True, 1
    [worker] = agents(1)
    worker.begin_sequences(prompts(), RoundSettings(1, SAMPLING, "train", False))
    worker.rollouts._begun[1].result(60)
    worker.begin_sequences(prompts(2), RoundSettings(0, SAMPLING, "val", False))
    worker.finish_sequences(0)
    assert len(worker.replicas.router) == 15, "all of the round, which is forgotten when it is finished"
    worker.finish_sequences(1)
    assert len(worker.replicas.router) == 0


def test_a_dead_replica_raises_its_own_error(agents, peers):
    class Gone(WorkerError):
        pass

    async def call(method, *args):
        raise Gone("rank 1 of actor_rollout_ref died")

    [worker] = agents(1)
    peers[1].call = call
    with held(peers[0]), pytest.raises(Gone, match="rank 1"):
        generated([worker], prompts(), False)
    # Those of the other replica were cancelled, and it can continue.
    assert peers[0].worker.engine.in_flight == 0
    assert any(method == "abort" for method, *_ in peers[0].calls)


def test_what_a_replica_refuses_names_the_trajectory(agents, peers):
    [worker] = agents(1)
    for peer in peers:
        peer.worker.engine.sleep()
    with pytest.raises(AgentError, match=r"uid 0, sample 0: RolloutError: .*wake"):
        generated([worker], prompts(), False)


def test_a_replica_that_hangs_is_reported_after_the_deadline_and_dropped(agents, peers, config):
    [worker] = agents(1)
    worker.rollouts.config.actor_rollout_ref.rollout.timeout = 0.2
    aborted = []

    async def call(method, *args):
        if method == "abort":
            return aborted.append(args[0])
        return await asyncio.Event().wait()

    for peer in peers:
        peer.call = call
    with pytest.raises(DeadlineError, match="3 of 3 trajectories were not done after 0.2 s"):
        generated([worker], prompts(1), False)
    assert sorted(aborted) == [f"train/0.{sample}.0" for sample in range(3)]


def test_the_ratio_of_failures_is_one_of_the_whole_batch(agents, config):
    workers = agents(2)
    config = workers[0].rollouts.config
    config.reward.max_failure_ratio = 0.3
    one = prompts(4, 1)
    one[0]["reward_model"] = {"style": "rule"}  # which cannot be scored: half of the first worker's
    batch = generated(workers, one, True)
    assert [result.error is None for result in batch.non_tensor_batch["score_result"]] == [False, True, True, True]
    config.reward.max_failure_ratio = 0.2
    with pytest.raises(RewardError, match="1 failed"):
        generated(workers, one, True)


def test_connect_comes_first_and_again_after_the_replicas_were_recreated(agents, peers, config):
    worker = AgentLoopWorker(config, 1)
    worker.close()
    with pytest.raises(WorkerError, match="call connect"):
        worker.begin_sequences(prompts(), RoundSettings(1, SAMPLING, "train", False))
    [worker] = agents(1)
    before = generated([worker], prompts(2), False)
    worker.connect(peers[1:])
    same(generated([worker], prompts(2), False), before)


def test_processes_that_score_are_shared_out(config):
    config.reward.num_workers, config.reward_model.sandbox.max_concurrent = 8, 64
    own = share_of(config, 3)
    assert (own.reward.num_workers, own.reward_model.sandbox.max_concurrent) == (3, 22)
    assert (config.reward.num_workers, config.reward_model.sandbox.max_concurrent) == (8, 64)
    assert share_of(config, 20).reward.num_workers == 1


def test_a_replica_reports_how_many_others_it_serves(peers):
    worker = peers[0].worker

    async def main():
        with held(peers[0]):
            sampling = Sampling(max_tokens=60, ignore_eos=True)
            slow = [asyncio.create_task(worker.generate(Request([5], sampling, str(i), (i,)))) for i in range(3)]
            quick = asyncio.create_task(worker.generate(Request([5], Sampling(max_tokens=1), "quick")))
            await asyncio.sleep(0)  # handed over
        loads = [(await task).load for task in asyncio.as_completed(slow)]
        return (await quick).load, sorted(loads)

    assert asyncio.run(main()) == (3, [0, 1, 2])


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
    with pytest.raises(DeadlineError, match=f"{late} hangs") if late else nullcontext():
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


def counters(tokens, steps, seconds):
    return {"generated_tokens": tokens, "steps": steps, "busy_s": seconds, "running": 1, "tokens_per_s": 9.0}


def test_counts_of_replicas_are_added_and_their_seconds_run_in_parallel():
    before = [counters(10, 4, 2.0), counters(0, 0, 1.0)]
    after = [counters(40, 9, 5.0), counters(90, 7, 7.0)]
    metrics = replica_metrics(before, after)
    assert metrics == {"rollout/generated_tokens": 120, "rollout/steps": 12, "timing_s/engine": 6.0}
    assert with_speed(metrics) == {"perf/rollout_tokens_per_s": 20.0}  # of all of them together
    assert replica_metrics(before[:1], after[:1]) == engine_metrics(before[0], after[0])
    assert replica_metrics([{"generated_tokens": 1}], [{"generated_tokens": 3}]) == {"rollout/generated_tokens": 2}
    assert replica_metrics([], []) == {}
    with pytest.raises(ValueError, match="shorter"):
        replica_metrics([{}, {}], [{}])
