"""SGLang's processes die, hang or do not start: it is noticed, said, and made good."""

import os
import signal

import pytest

from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.hosted.keeper import members
from tests.rollout.hosted.supervised_contract import SupervisedContract, fails_when

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
PROMPT = [58, 47, 26]
SHAPE = {"context": 512}
OWN = {"log_level": "info", "max_total_tokens": 4096, "random_seed": 7, "schedule_policy": "fcfs"}
OWN |= {"watchdog_timeout": 500}


def test_a_process_that_dies_or_hangs_is_found_and_replaced(start, module, tokenizer, buckets):
    engine = start(heartbeat_s=20.0)
    engine.publish(buckets(module), 7)
    sampling = Sampling(max_tokens=10, seed=3)
    (wanted,) = HFEngine(module, tokenizer).run([(PROMPT, sampling)])
    said = fails_when(engine, lambda: os.kill(engine.process.pids[0], signal.SIGKILL))
    assert said.startswith("request struck: SGLang is lost") and "The last lines of" in said
    assert engine.lost() is not None and not members(engine.process.pid)
    renewed = engine.renewed()
    try:
        assert renewed.lost() is None
        (completion,) = renewed.run([(PROMPT, sampling)])
        assert (completion.token_ids, completion.policy_version) == (wanted.token_ids, 7)
        said = fails_when(renewed, lambda: os.kill(renewed.process.pids[0], signal.SIGSTOP))
        assert "gave no sign of life for 20 s" in said
        assert not members(renewed.process.pid), "also what stands still has been ended"
    finally:
        renewed.close()


@pytest.fixture(scope="module")
def computing():
    return lambda engine: engine.process.pids[0]


class TestSupervised(SupervisedContract):
    label, shape, own = "SGLang", SHAPE, OWN
