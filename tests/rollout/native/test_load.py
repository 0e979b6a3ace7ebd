"""Continuous batching under load: whatever comes, goes, is cut, shared, preempted or given up, outputs stay exact.

"Exact" is `exact.check_exact`: each token follows from a plain forward over what came before it and from the request's
own noise, so a request gives what it gives alone. The state machine plays an event loop pass by pass.
"""

import asyncio
import copy
from functools import cache

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from burnish.models.tiny import byte_tokenizer
from burnish.rollout.base import Request, Sampling
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.asking import passes as turns
from tests.rollout.asking import start
from tests.rollout.native.exact import check_exact, random_prompts
from tests.rollout.native.models import build, very_tiny

CONTEXT = 64
STEMS = random_prompts(3, seed=11, shortest=17, longest=21)
prompts = st.builds(
    lambda stem, length, tail: [*STEMS[stem][:length], *tail],
    st.integers(0, len(STEMS) - 1),
    st.sampled_from([1, 3, 4, 8, 16, 17, 21]),
    st.sampled_from([[], [], [], [7], [7, 9], list(range(30, 43))]),
)
KINDS = [{}, {"ignore_eos": True}, {"temperature": 0.7}, {"temperature": 3.0}, {"temperature": 0.0}, {"top_k": 5}]
KINDS += [{"top_p": 0.8, "min_p": 0.05}, {"stop_token_ids": tuple(range(40, 90))}]
samplings = st.builds(
    lambda count, seed, kind: Sampling(max_tokens=count, seed=seed, **kind),
    st.one_of(st.integers(1, 6), st.integers(1, 24)),
    st.integers(0, 5),
    st.sampled_from(KINDS),
)


@cache
def weights(version):
    """The model after so many updates, and its weights; version 1 is far from version 0."""
    return build("qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2}, seed=version, context=CONTEXT)


class Load(RuleBasedStateMachine):
    fused = True

    @initialize(
        ahead=st.integers(0, 3),
        blocks=st.sampled_from([14, 15, 18, 24, 40]),
        rows=st.sampled_from([1, 2, 5, 8, 8]),
        line=st.sampled_from([(8, True), (24, True), (512, True), (64, False)]),
        prefix_caching=st.booleans(),
    )
    def start(self, ahead, blocks, rows, line, prefix_caching):
        self.version = 0
        self.module = copy.deepcopy(weights(0))
        batched_tokens, chunked = line
        self.engine = NativeEngine(
            self.module,
            byte_tokenizer(),
            block_size=4,
            blocks=blocks,
            max_num_seqs=rows,
            max_num_batched_tokens=batched_tokens,
            chunked_prefill=chunked,
            prefix_caching=prefix_caching,
            ahead=ahead,
            fused=self.fused,
        )
        self.rows = rows
        self.loop = asyncio.new_event_loop()
        self.count = 0
        self.tasks = {}  # by request id: the task, the request, and the tokens its callback saw (None: it has none)
        self.cancelled = []
        self.conversations = []  # prompts with their completions, to continue from

    @rule(prompt=prompts, sampling=samplings, watched=st.booleans(), place=st.integers(0, 3))
    def arrive(self, prompt, sampling, watched, place):
        seen = [] if watched else None
        call = self.engine.generate(
            Request(prompt, sampling, request_id=f"request-{self.count}", order=(place,)),
            on_token=(lambda token, log_prob: seen.append(token)) if watched else None,
        )
        self.tasks[f"request-{self.count}"] = (self.loop.create_task(call), (prompt, sampling), seen)
        self.count += 1

    @rule(prompt=prompts, sampling=samplings, count=st.integers(2, 8))
    def arrive_as_a_group(self, prompt, sampling, count):
        for seed in range(count):
            self.arrive(prompt, Sampling(**sampling.to_params(), seed=seed), False, 0)

    @rule(count=st.integers(3, 8), seed=st.integers(0, 5))
    def arrive_as_a_crowd(self, count, seed):
        """Short prompts with long completions: all are let in, and there is no room for all to grow."""
        for i in range(count):
            self.arrive([5 + i, 6], Sampling(max_tokens=24, ignore_eos=True, seed=seed), False, i)

    @precondition(lambda self: self.conversations)
    @rule(data=st.data(), sampling=samplings, tail=st.lists(st.integers(3, 9), min_size=1, max_size=3))
    def continue_a_conversation(self, data, sampling, tail):
        before = data.draw(st.sampled_from(self.conversations), label="conversation")
        self.arrive([*before, *tail][: self.engine.context - 1], sampling, False, 0)

    @rule(passes=st.one_of(st.integers(1, 5), st.integers(1, 150)))
    def let_the_loop_turn(self, passes):
        self.loop.run_until_complete(turns(passes))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(data.draw(st.sampled_from(sorted(self.tasks)), label="abort"))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def give_up(self, data):
        name = data.draw(st.sampled_from(sorted(self.tasks)), label="cancel")
        task, *_ = self.tasks.pop(name)
        task.cancel()
        self.cancelled.append(task)

    @rule()
    def finish(self):
        async def wait():
            tasks = [task for task, *_ in self.tasks.values()]
            if tasks or self.cancelled:
                done, late = await asyncio.wait([*tasks, *self.cancelled], timeout=60)
                assert not late, f"{len(late)} of {len(done) + len(late)} requests never end: {self.engine.stats()}"

        self.loop.run_until_complete(wait())
        requests = [request for _, request, _ in self.tasks.values()]
        completions = [task.result() for task, *_ in self.tasks.values()]
        check_exact(weights(self.version % 2), requests, completions, context=self.engine.context)
        for completion, (_, (prompt, _), seen) in zip(completions, self.tasks.values(), strict=True):
            assert completion.policy_version == self.version
            assert seen is None or seen == completion.token_ids
            self.conversations.append([*prompt, *completion.token_ids])
        self.tasks, self.cancelled = {}, []
        self.pool_is_whole()

    @rule(change=st.booleans())
    def update_and_publish(self, change):
        """The weights change where they lie, as an optimiser changes them; cached keys and values must not survive."""
        self.finish()
        if change:
            self.version += 1
            self.module.load_state_dict(weights(self.version % 2).state_dict())
        else:
            self.version += 2
        self.engine.publish(None, self.version)
        assert self.engine.stats()["kv_blocks_cached"] == 0

    @rule()
    def sleep_and_wake(self):
        self.finish()
        self.engine.sleep()
        self.engine.wake()

    @invariant()
    def limits_are_kept(self):
        if not hasattr(self, "engine"):
            return
        stats = self.engine.stats()
        assert stats["running"] <= self.rows
        assert stats["kv_blocks_used"] >= 0 and stats["kv_blocks_cached"] >= 0
        assert stats["kv_blocks_used"] + stats["kv_blocks_cached"] <= stats["kv_blocks"]

    def pool_is_whole(self):
        stats = self.engine.stats()
        assert (stats["running"], stats["waiting"], stats["kv_blocks_used"]) == (0, 0, 0), stats

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        try:
            self.finish()
            self.engine.publish(None, self.version + 2)
            self.pool_is_whole()
            assert self.engine.stats()["kv_blocks_cached"] == 0
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


@pytest.mark.parametrize("fused,examples", [(True, 30), (False, 10)], ids=["fused", "module"])
def test_whatever_comes_and_goes(fused, examples):
    machine = type("Load", (Load,), {"fused": fused})
    run_machine(machine, settings=settings(max_examples=examples, stateful_step_count=24, deadline=None))


def random_load(count, seed, stems, longest, most, usual=10):
    """Log-normal lengths; a third of the prompts are equal to others, a third continue a common beginning."""
    rng = np.random.default_rng(seed)
    kinds = [{}, {"temperature": 0.8}, {"temperature": 0.0}, {"top_k": 8}, {"top_p": 0.9}]
    requests = []
    for i in range(count):
        tail = rng.integers(3, 259, min(longest, 1 + int(rng.lognormal(1.5, 1)))).tolist()
        stem = stems[rng.integers(len(stems))]
        prompt = [stem, stem[: rng.integers(1, len(stem))] + tail, tail][i % 3]
        limit = min(most, 1 + int(rng.lognormal(np.log(usual), 0.8)))
        requests.append((prompt, Sampling(max_tokens=limit, seed=i, ignore_eos=bool(i % 2), **kinds[i % len(kinds)])))
    return requests


def under_load(engine, requests, leaving, pauses):
    """Completions of requests that come in bursts, while others run: before request `i` the loop turns `pauses[i]`
    times, and it is aborted after `leaving[i]` tokens."""

    async def one(i, prompt, sampling):
        seen = []

        def on_token(token, log_prob):
            seen.append(token)
            if len(seen) == leaving[i]:
                asyncio.get_running_loop().call_soon(engine.abort, str(i))

        watched = on_token if i in leaving else None
        completion = await start(engine, str(i), prompt, sampling, (i // 7,), watched)
        assert watched is None or seen == completion.token_ids
        return completion

    async def main():
        tasks = []
        for i, request in enumerate(requests):
            await turns(pauses.get(i, 0))
            tasks.append(asyncio.create_task(one(i, *request)))
        return await asyncio.gather(*tasks)

    return asyncio.run(main())


@pytest.mark.parametrize("count,ahead", [(2000, 0), (700, 3)])
def test_thousands_of_requests(native, one_by_one, count, ahead):
    module = very_tiny(context=96)
    engine = native(module, block_size=4, blocks=56, max_num_seqs=48, max_num_batched_tokens=96, ahead=ahead)
    requests = random_load(count, 1, random_prompts(9, seed=4, shortest=10, longest=30), longest=20, most=40)
    rng = np.random.default_rng(0)
    leaving = dict(zip(rng.choice(count, 100, replace=False).tolist(), rng.integers(1, 8, 100).tolist(), strict=True))
    pauses = {i: int(rng.integers(1, 40)) for i in range(count) if rng.random() < 0.02}
    completions = under_load(engine, requests, leaving, pauses)
    checked = check_exact(module, requests, completions, context=96)
    assert checked.near_ties <= 2
    stats = engine.stats()
    assert stats["preemptions"] > 0 and stats["shared_tokens"] > 0 and stats["prefix_hit_tokens"] > 0
    assert stats["requests"] == count and 20 < stats["aborted"] <= 100
    assert 0 <= stats["generated_tokens"] - checked.tokens <= ahead * stats["aborted"]  # under way when they left
    few = range(0, count, 67)
    alone = one_by_one(module, [requests[i] for i in few])
    for i, expected in zip(few, alone, strict=True):
        got = completions[i]
        assert got.token_ids == expected.token_ids[: len(got.token_ids)]
        assert got.finish_reason in (expected.finish_reason, "abort")
    engine.publish(None, 1)
    assert engine.stats()["kv_blocks_cached"] == 0
