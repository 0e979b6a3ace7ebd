"""The vllm engine beside the module that it generates for, and beside the engine that runs the module itself."""

import pytest

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from tests.rollout.hosted.contract import HostedContract, one

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


class TestContract(HostedContract):
    """What is asked of every hosted engine."""


def test_a_temperature_that_vllm_does_not_take(engine):
    with pytest.raises(RolloutError, match="temperature 2.5: vLLM takes 0"):
        one(engine, Sampling(temperature=2.5))
    assert engine.in_flight == 0
