"""The sglang engine beside the module that it generates for, and beside the engine that runs the module itself.

Its noise is that of burnish's own engines: a seed gives the same tokens as in them. Processes that die or hang
are noticed, reported and replaced.
"""

import asyncio

import pytest

from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from tests.rollout.asking import start
from tests.rollout.hosted.contract import LONG, PROMPT, HostedContract, assert_alike, one
from tests.rollout.hosted.supervised_contract import SupervisedContract

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
SHAPE = {"context": 512}
OWN = {"log_level": "info", "max_total_tokens": 4096, "random_seed": 7, "schedule_policy": "fcfs"}
OWN |= {"watchdog_timeout": 500}


class TestContract(HostedContract):
    """What is asked of every hosted engine."""


WAYS = [
    dict(temperature=0),
    dict(temperature=0.6),
    dict(),
    dict(temperature=1.7, top_k=5),
    dict(temperature=1.3, top_p=0.7),
    dict(min_p=0.2),
    dict(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01),
    dict(ignore_eos=True),
]


@pytest.mark.parametrize("ways", [*([way] for way in WAYS), WAYS], ids=str)
def test_tokens_and_log_probs_are_those_of_the_hf_engine(engine, module, tokenizer, ways):
    """The same seeds give the same tokens in both, whatever else is in the batch, and however that is sampled."""
    samplings = [Sampling(max_tokens=30, seed=seed, **way) for seed in (0, 5, 2**63 + 1, 2**64 - 1) for way in ways]
    requests = [(prompt, sampling) for sampling in samplings for prompt in (PROMPT, LONG, [7])]
    for completion, wanted in zip(engine.run(requests), HFEngine(module, tokenizer).run(requests), strict=True):
        assert_alike(completion, wanted)
        assert completion.policy_version == 1


def test_new_weights_that_are_the_same_change_no_token(engine, module, buckets, tokenizer):
    """Noise is by position in the completion, so a request that goes on in another part goes on as it would have."""
    sampling = Sampling(seed=6, max_tokens=200, ignore_eos=True)

    async def ask():
        begun = asyncio.Event()
        task = start(engine, "goes on", PROMPT, sampling, on_token=lambda *token: begun.set())
        await begun.wait()
        await asyncio.to_thread(engine.publish, buckets(module), 2)
        return await task

    completion = asyncio.run(ask())
    assert set(completion.token_versions()) == {1, 2}
    assert completion.token_ids == one(HFEngine(module, tokenizer), sampling).token_ids


@pytest.fixture(scope="module")
def computing():
    return lambda engine: engine.process.pids[0]


class TestSupervised(SupervisedContract):
    label, shape, own = "SGLang", SHAPE, OWN
