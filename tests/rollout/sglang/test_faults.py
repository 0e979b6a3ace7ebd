"""SGLang's processes die, hang or do not start: it is noticed, said, and made good."""

import pytest

from tests.rollout.hosted.supervised_contract import SupervisedContract

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]
SHAPE = {"context": 512}
OWN = {"log_level": "info", "max_total_tokens": 4096, "random_seed": 7, "schedule_policy": "fcfs"}
OWN |= {"watchdog_timeout": 500}


@pytest.fixture(scope="module")
def computing():
    return lambda engine: engine.process.pids[0]


class TestSupervised(SupervisedContract):
    label, shape, own = "SGLang", SHAPE, OWN
