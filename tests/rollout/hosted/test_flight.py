"""What becomes of the tokens that a program tells; without a program."""

import asyncio

import pytest

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.hosted.engine import Flight
from burnish.rollout.hosted.process import HostedTokens
from burnish.rollout.request import RequestState


@pytest.mark.parametrize("log_prob", [float("nan"), float("-inf"), float("inf")])
def test_a_log_prob_that_is_no_number_ends_its_request(log_prob):
    async def told():
        loop = asyncio.get_running_loop()
        request = RequestState("r", [3], Sampling(), 9, frozenset(), None, loop.create_future())
        flight = Flight(request, loop)
        flight.take(HostedTokens([5, 6], [-1.0, log_prob], 3, None), 3)
        return await request.future

    with pytest.raises(RolloutError, match=rf"request r: the log-prob of token 1 is {log_prob}: .*version 3"):
        asyncio.run(told())
