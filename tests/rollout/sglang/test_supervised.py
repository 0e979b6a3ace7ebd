"""SGLang dies or stands still in the middle of requests: another one answers them, with the weights published last."""

import pytest

from burnish.rollout.replacing import ReplacingEngine
from tests.rollout.hosted.supervised_contract import SupervisedContract

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def supervised(start):
    """It stands still for long when it has not been heard for 20 s."""
    engine = ReplacingEngine(start(heartbeat_s=20.0))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def computing():
    return lambda engine: engine.process.pids[0]


class TestSupervised(SupervisedContract):
    label = "SGLang"
