"""New weights while requests run: each token comes from the weights that its version names, and from no others."""

import asyncio
import copy
import threading
import time

import pytest
import torch

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.engine_loop import EngineLoop
from tests.rollout.asking import passes, polled, start
from tests.rollout.native.exact import check_exact, random_requests
from tests.rollout.native.models import CONTEXT, family

PASSES = 24  # of the event loop between two publishes: a few steps of the engine
SIXTY = Sampling(max_tokens=60, ignore_eos=True)


def other_weights(module, seed):
    changed = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.3 * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator))
    return changed


def run_on(engine, requests, published, *, tell=None, count=PASSES):
    """Completions of requests during which the state of each module of `published` is published, in its turn."""

    async def main():
        calls = [start(engine, str(i), *request, (i,), tell) for i, request in enumerate(requests)]
        waiting = asyncio.gather(*calls)
        for version, module in published.items():
            await passes(count)
            engine.publish([module.state_dict()], version)
        return await waiting

    return asyncio.run(main())


@pytest.mark.parametrize("settings", [{}, {"fused": False}, {"max_num_seqs": 3}, {"blocks": 24}, {"ahead": 2}],
                         ids=["fused", "module", "most wait", "little memory", "ahead"])  # fmt: skip
def test_each_token_is_of_the_weights_that_its_version_names(native, settings):
    module = family("qwen2")
    versions = {0: copy.deepcopy(module)} | {number: other_weights(module, number) for number in (1, 2, 3)}
    engine = native(module, **settings)
    requests = random_requests(24, seed=5, most=40)
    completions = run_on(engine, requests, {number: versions[number] for number in (1, 2, 3)})
    checked = check_exact(versions, requests, completions, context=CONTEXT)
    assert checked.tokens > 200 and checked.near_ties <= 2
    mixed = [completion for completion in completions if len(set(completion.token_versions())) > 1]
    assert mixed, "no request had tokens of several versions: the test shows nothing"
    for completion in completions:
        seen = completion.token_versions()
        assert seen == sorted(seen) and len(seen) == len(completion.token_ids)
        assert completion.policy_version == min(seen)


def test_tokens_are_reported_once_and_stop_strings_are_found_across_a_publish(native, tokenizer):
    module = family("qwen2")
    same, told = copy.deepcopy(module), []
    [(prompt, _)] = random_requests(1, seed=8)
    plain = native(module).run([(prompt, Sampling(max_tokens=40, ignore_eos=True, seed=3))])[0]
    text = [tokenizer.decode([token]) for token in plain.token_ids]
    place = next(i for i in range(6, 38) if all(piece.isascii() and len(piece) == 1 for piece in text[i : i + 3]))
    stop = "".join(text[place : place + 3])
    requests = [(prompt, Sampling(max_tokens=40, ignore_eos=True, seed=3, stop=(stop,)))]
    [expected] = native(module).run(requests)
    for count in range(10, 60, 4):  # so that a publish falls into the stop string as well
        told.clear()
        [cut] = run_on(native(module), requests, {1: same}, tell=lambda *token: told.append(token), count=count)
        assert cut.token_ids == expected.token_ids == [token for token, _ in told] and cut.stop == stop


def test_no_request_continues_with_half_updated_weights(native):
    module = family("qwen2")
    engine, changed = native(module), other_weights(module, 1)

    def half():
        state = list(changed.state_dict().items())
        yield dict(state[: len(state) // 2])
        raise OSError("the network is gone")

    async def main():
        tasks = [start(engine, name, sampling=SIXTY) for name in "ab"]
        await passes(PASSES * 3)
        with pytest.raises(OSError, match="the network is gone"):
            engine.publish(half(), 1)
        return await asyncio.gather(*tasks, return_exceptions=True)

    failures = asyncio.run(main())
    assert [str(error) for error in failures] == [
        f"request {name}: the weights were to change under it, which failed: the network is gone" for name in "ab"
    ]
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run([([5, 6], Sampling(max_tokens=4))])
    engine.publish([changed.state_dict()], 2)
    assert engine.run([([5, 6], Sampling(max_tokens=4))])[0].policy_version == 2


@pytest.mark.parametrize("ahead", [0, 3])
def test_from_another_thread_as_the_engine_generates(native, monkeypatch, ahead):
    """With asyncio's own checks on: nothing of the loop is touched from the thread that publishes."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    module = family("qwen2")
    versions = {0: copy.deepcopy(module)} | {number: other_weights(module, number) for number in (1, 2, 3)}
    engine = native(module, ahead=ahead)
    loop = EngineLoop(engine)
    requests = random_requests(24, seed=9, most=40)
    decoder, hand_over, asked_for = engine.runner.decoder, loop._hand_over, []

    def step(*inputs):
        """The engine goes no further than to where the next publish is asked for, and on to where that may begin."""
        while threading.current_thread() is loop._thread and len(asked_for) == engine.version < 3:
            if engine.stats()["generated_tokens"] < 60 * (engine.version + 1):
                break
            time.sleep(0.001)
        return decoder(*inputs)

    def handed_over(function):
        is_there = hand_over(function)
        asked_for.append(function)
        return is_there

    monkeypatch.setattr(engine.runner, "decoder", step)
    monkeypatch.setattr(loop, "_hand_over", handed_over)

    async def main():
        waiting = asyncio.gather(*[start(loop, str(i), *asked, (i,)) for i, asked in enumerate(requests)])
        for number in (1, 2, 3):
            await polled(lambda number=number: loop.stats()["generated_tokens"] >= 60 * number)
            await asyncio.to_thread(loop.publish, [versions[number].state_dict()], number)
        return await waiting

    completions = asyncio.run(asyncio.wait_for(main(), 120))
    loop.close()
    check_exact(versions, requests, completions, context=CONTEXT)
    assert {version for c in completions for version in c.token_versions()} == {0, 1, 2, 3}


def test_a_request_that_is_aborted_after_a_publish_has_the_old_version_alone(native):
    module = family("qwen2")
    engine, same = native(module), copy.deepcopy(module)

    async def main():
        tasks = [start(engine, name, sampling=SIXTY) for name in "ab"]
        await passes(PASSES * 3)
        engine.publish([same.state_dict()], 1)
        engine.abort("a")
        return await asyncio.gather(*tasks)

    aborted, whole = asyncio.run(main())
    assert aborted.finish_reason == "abort" and set(aborted.token_versions()) == {0}
    assert len(whole.token_ids) == 60 and set(whole.token_versions()) == {0, 1}
