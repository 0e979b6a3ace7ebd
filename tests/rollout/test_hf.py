"""The hf engine: which rows share a batch, and how a request joins one that runs after `admit_any_time`.

`test_in_process.py` has what it shares with the native engine.
"""

import asyncio

import numpy as np
import pytest
import torch

from burnish.errors import NotAvailable, RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.waits import longest
from tests.rollout.asking import passes, start, until
from tests.rollout.native.exact import greedy, random_prompts
from tests.rollout.native.models import FAMILIES, OTHER_KINDS, build

LONG = Sampling(max_tokens=40, ignore_eos=True, seed=7)
SHORT = Sampling(max_tokens=2, ignore_eos=True)


@pytest.fixture
def engine(module, tokenizer):
    return HFEngine(module, tokenizer)


def test_rows_that_are_done_leave_the_batch(module, engine, monkeypatch):
    sizes, forward, seen = [], module.forward, set()

    def looked(**inputs):
        sizes.append(len(inputs["input_ids"]))
        seen.update((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())
        assert not module.training
        return forward(**inputs)

    monkeypatch.setattr(module, "forward", looked)
    module.train()
    try:
        completions = engine.run([([5, 6], Sampling(max_tokens=n, ignore_eos=True, seed=n)) for n in range(1, 9)])
        assert all(child.training for child in module.modules()) and torch.is_grad_enabled()
    finally:
        module.eval()
    assert [len(c.token_ids) for c in completions] == list(range(1, 9))
    assert sizes == [1, 8, 8, 8, 4, 4, 2, 1]  # one prefill for the shared prompt, then half, and half again
    assert ("engine", "the rollout engine", "a step of 8 sequences", 1800) in seen and not longest()
    assert engine.stats() == {
        "requests": 8, "aborted": 0, "prompt_tokens": 16, "generated_tokens": 36, "batches": 1,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "mistral-window", "gemma2", "gpt2"])
def test_greedy_equals_transformers_generate(tokenizer, name):
    module = build(*FAMILIES[name])
    requests = [(prompt, Sampling(temperature=0, max_tokens=24)) for prompt in random_prompts(6)]
    for (prompt, _), completion in zip(requests, HFEngine(module, tokenizer).run(requests), strict=True):
        assert completion.token_ids == greedy(module, prompt, 24)
        assert len(set(completion.token_ids)) > 3 or len(completion.token_ids) < 24  # not one token over and over


def test_models_with_other_caches_are_refused(tokenizer):
    engine = HFEngine(build("mamba", OTHER_KINDS["mamba"]), tokenizer, max_model_len=32)
    with pytest.raises(NotAvailable, match="MambaForCausalLM"):
        engine.run([([5], SHORT)])


# Joining a batch that runs


@pytest.fixture
def joining(module, tokenizer):

    def make(module=module, **options):
        engine = HFEngine(module, tokenizer, **options)
        engine.admit_any_time()
        return engine

    return make


def one_after_another(engine, requests, steps_between=2):
    finished = []

    async def main():
        calls = []
        for i, (ids, sampling) in enumerate(requests):
            calls.append(start(engine, str(i), ids, sampling))
            calls[-1].add_done_callback(lambda _, i=i: finished.append(i))
            await passes(20 if i == 0 else steps_between)  # the first waits until the engine has settled
        return await asyncio.gather(*calls)

    return asyncio.run(main()), finished


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@pytest.mark.parametrize("max_num_seqs", [1024, 3])
def test_joined_tokens_are_those_of_a_batch_of_their_own(joining, one_by_one, name, max_num_seqs):
    module, rng = build(*FAMILIES[name]), np.random.default_rng(0)
    kinds = [{}, {"temperature": 0.0}, {"top_k": 5}]
    requests = [
        (prompt, Sampling(max_tokens=int(rng.integers(1, 30)), ignore_eos=True, seed=i, **kinds[i % 3]))
        for i, prompt in enumerate(random_prompts(16))
    ]
    got, _ = one_after_another(joining(module, max_num_seqs=max_num_seqs), requests)
    for one, other in zip(got, one_by_one(module, requests), strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_short_request_does_not_wait_for_a_long_one(engine, joining, tokenizer):
    requests = [([5, 6], LONG), ([7, 8, 9], SHORT)]
    assert one_after_another(joining(), requests)[1] == [1, 0]
    assert one_after_another(engine, requests)[1] == [0, 1]
    window = build(*FAMILIES["mistral-window"])  # such models finish their batch first
    got, finished = one_after_another(joining(window), requests)
    assert finished == [0, 1]
    assert [c.token_ids for c in got] == [c.token_ids for c in HFEngine(window, tokenizer).run(requests)]


def test_a_newcomer_takes_a_place_as_soon_as_one_is_free(joining):
    """Places of rows that are done are free, also while fewer than half of them are."""
    engine, finished = joining(max_num_seqs=8), []

    def begin(name, sampling):
        task = start(engine, name, sampling=sampling)
        task.add_done_callback(lambda _: finished.append(name))
        return task

    async def main():
        calls = [begin(f"short {i}", SHORT) for i in range(3)]
        calls += [begin(f"long {i}", Sampling(max_tokens=60, ignore_eos=True)) for i in range(5)]
        await until(lambda: len(finished) == 3)
        calls.append(begin("newcomer", SHORT))
        return await asyncio.gather(*calls)

    completions = asyncio.run(main())
    assert finished.index("newcomer") == 3 and {len(c.token_ids) for c in completions[3:8]} == {60}


@pytest.mark.parametrize("steps_between", [0, 2])
def test_a_long_prompt_does_not_widen_the_short_rows(module, joining, monkeypatch, one_by_one, steps_between):
    """At most half of a batch is padding; a batch of their own where it would be more."""
    requests = [([5 + i, 6], Sampling(max_tokens=12, ignore_eos=True, seed=i)) for i in range(8)]
    requests.insert(4, (list(range(3, 51)), Sampling(max_tokens=12, ignore_eos=True, seed=9)))
    expected, shares = one_by_one(module, requests), []

    def watch(_, __, inputs):
        mask = inputs["attention_mask"]
        shares.append(mask.sum().item() / mask.numel())

    hook = module.register_forward_pre_hook(watch, with_kwargs=True)
    monkeypatch.setattr("burnish.rollout.hf.engine.SMALL", 0)
    got, finished = one_after_another(joining(), requests, steps_between)
    hook.remove()
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]
    assert min(shares) >= 0.4 and len(finished) == 9  # half, but for rows that are done and not yet dropped


def test_the_batch_does_not_grow_wider_than_its_rows_need(module, joining, monkeypatch):
    """Requests follow each other without a pause, so that the batch never ends."""
    widths, forward = [], module.forward
    monkeypatch.setattr(
        module, "forward", lambda **inputs: widths.append(inputs["attention_mask"].shape[1]) or forward(**inputs)
    )
    requests = [([5, 6], Sampling(max_tokens=6, ignore_eos=True, seed=i)) for i in range(40)]
    engine = joining()
    one_after_another(engine, requests, steps_between=3)
    assert engine.stats()["batches"] == 40 and engine.stats()["generated_tokens"] == 240
    assert max(widths) <= 24


@pytest.mark.parametrize("where", ["join", "prefill"])
def test_a_newcomer_that_fails(module, joining, monkeypatch, where):
    """A join that fails ends both; a prefill leaves the others alone. The engine continues."""
    engine, forward = joining(), module.forward

    def no_room(*_, **__):
        raise MemoryError("no room")

    def no_long_prompts(**inputs):
        return no_room() if inputs["input_ids"].shape[1] > 10 else forward(**inputs)

    async def main():
        long = start(engine, "long", sampling=LONG)
        await until(lambda: engine.stats()["batches"])
        with pytest.raises(RolloutError, match="request newcomer: MemoryError: no room"):
            await start(engine, "newcomer", [5] * 20, LONG)
        return (await asyncio.gather(long, return_exceptions=True))[0]

    with monkeypatch.context() as patch:
        if where == "join":
            patch.setattr("burnish.rollout.hf.engine._widened", no_room)
        else:
            patch.setattr(module, "forward", no_long_prompts)
        ended = asyncio.run(main())
    if where == "join":
        assert str(ended) == "request long: MemoryError: no room"
    else:
        assert len(ended.token_ids) == 40
    assert one_after_another(engine, [([5, 6], SHORT)])[1] == [0]
