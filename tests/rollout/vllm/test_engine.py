"""The vllm engine beside the module that it generates for, and beside the engine that runs the module itself."""

import pytest

from tests.rollout.hosted.contract import HostedContract

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


class TestContract(HostedContract):
    """What is asked of every hosted engine."""
