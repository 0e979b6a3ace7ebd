"""What the host makes of SGLang's answers; without SGLang."""

import asyncio
from types import SimpleNamespace

import pytest

from burnish.rollout.hosted.process import HostedRequest
from burnish.rollout.sglang.host import SGLangHost


def answer(rows, count, end=None):
    """As it streams: new rows, and the number of all tokens so far."""
    told = {"output_token_logprobs": [(-float(i), i, None) for i in rows], "completion_tokens": count}
    return {"meta_info": told | {"finish_reason": end}}


ABORT = {"type": "abort", "message": "Abort in waiting queue"}


@pytest.mark.parametrize(
    ("answers", "tokens"),
    [
        ([answer([5], 1), answer([6, 7], 3), answer([8], 4, {"type": "length"})], [5, 6, 7, 8]),
        ([answer([5, 6], 2), answer([], 2, ABORT)], [5, 6]),
        ([answer([5, 6], 2), answer([5, 6], 2, ABORT)], [5, 6]),
        ([answer([5], 1), answer([6, 5, 6], 2, ABORT)], [5, 6]),
        ([answer([], 0, ABORT)], []),
    ],
    ids=["to its end", "ended while it ran", "while it waited", "two answers at once", "before it began"],
)
def test_every_token_is_reported_once(answers, tokens):
    """The last answer to a request that waits for memory has all its tokens; answers that come together are one."""

    async def stream():
        for each in answers:
            yield each

    async def async_generate(**asked):
        return stream()

    async def told():
        host = object.__new__(SGLangHost)
        host._engine = SimpleNamespace(async_generate=async_generate)
        return [piece async for piece in host.tokens("name", HostedRequest([3], {}, 0, 9, True), [])]

    pieces = asyncio.run(told())
    assert [i for ids, _, _ in pieces for i in ids] == tokens
    assert [-p for _, log_probs, _ in pieces for p in log_probs] == tokens
    assert pieces[-1][2] == answers[-1]["meta_info"]["finish_reason"]["type"]
