"""After `admit_any_time` a request joins the batch that runs: the same tokens, and nobody waits for the longest."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.errors import RolloutError
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hf.engine import HFEngine

LONG = Sampling(max_tokens=40, ignore_eos=True, seed=7)


def joining(module, tokenizer, **options):
    engine = HFEngine(module, tokenizer, **options)
    engine.admit_any_time()
    return engine


def one_after_another(engine, requests, steps_between=2):
    """Each request is made while those before it run, a few steps later."""
    finished = []

    async def one(i, ids, sampling):
        completion = await engine.generate(Request(ids, sampling, request_id=str(i)))
        finished.append(i)
        return completion

    async def main():
        calls = []
        for i, (ids, sampling) in enumerate(requests):
            calls.append(asyncio.create_task(one(i, ids, sampling)))
            for _ in range(20 if i == 0 else steps_between):  # the first waits until the engine has settled
                await asyncio.sleep(0)
        return await asyncio.gather(*calls)

    return asyncio.run(main()), finished


def staggered_requests(count, seed=0):
    rng = np.random.default_rng(seed)
    kinds = [{}, {"temperature": 0.0}, {"top_k": 5}]
    return [
        (
            rng.integers(3, 90, rng.integers(1, 20)).tolist(),
            Sampling(max_tokens=int(rng.integers(1, 30)), ignore_eos=True, seed=i, **kinds[i % 3]),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("model_type", ["qwen2", "gpt2"])
@pytest.mark.parametrize("max_num_seqs", [1024, 3])
def test_joined_tokens_are_those_of_a_batch_of_their_own(tmp_path, sharpen, generate_all, model_type, max_num_seqs):
    folder = write_tiny_model(tmp_path, model_type=model_type, context=64, tie_word_embeddings=False)
    module = sharpen(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    requests = staggered_requests(16)
    expected = generate_all(HFEngine(module, tokenizer, max_num_seqs=1), requests)
    got, _ = one_after_another(joining(module, tokenizer, max_num_seqs=max_num_seqs), requests)
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_a_short_request_does_not_wait_for_a_long_one(module, tokenizer):
    requests = [([5, 6], LONG), ([7, 8, 9], Sampling(max_tokens=2, ignore_eos=True))]
    assert one_after_another(joining(module, tokenizer), requests)[1] == [1, 0]
    assert one_after_another(HFEngine(module, tokenizer), requests)[1] == [0, 1]


def test_a_newcomer_takes_a_place_as_soon_as_one_is_free(module, tokenizer):
    """Places of rows that are done are free, also while fewer than half of them are."""
    short, long = Sampling(max_tokens=2, ignore_eos=True), Sampling(max_tokens=60, ignore_eos=True)
    engine = joining(module, tokenizer, max_num_seqs=8)
    finished = []

    async def one(name, sampling):
        completion = await engine.generate(Request([5, 6], sampling, request_id=name))
        finished.append(name)
        return completion

    async def main():
        calls = [asyncio.create_task(one(f"short {i}", short)) for i in range(3)]
        calls += [asyncio.create_task(one(f"long {i}", long)) for i in range(5)]
        while len(finished) < 3:
            await asyncio.sleep(0)
        calls.append(asyncio.create_task(one("newcomer", short)))
        return await asyncio.gather(*calls)

    completions = asyncio.run(main())
    assert finished.index("newcomer") == 3 and {len(c.token_ids) for c in completions[3:8]} == {60}


@pytest.mark.parametrize("steps_between", [0, 2])
def test_a_long_prompt_does_not_widen_the_short_rows(module, tokenizer, monkeypatch, generate_all, steps_between):
    """At most half of a batch is padding; a batch of their own where it would be more."""
    requests = [([5 + i, 6], Sampling(max_tokens=12, ignore_eos=True, seed=i)) for i in range(8)]
    requests.insert(4, (list(range(3, 51)), Sampling(max_tokens=12, ignore_eos=True, seed=9)))
    expected = generate_all(HFEngine(module, tokenizer, max_num_seqs=1), requests)
    shares = []

    def watch(_, __, inputs):
        mask = inputs["attention_mask"]
        shares.append(mask.sum().item() / mask.numel())

    hook = module.register_forward_pre_hook(watch, with_kwargs=True)
    monkeypatch.setattr("burnish.rollout.hf.batch.SMALL", 0)
    got, finished = one_after_another(joining(module, tokenizer), requests, steps_between)
    hook.remove()
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]
    assert min(shares) >= 0.4 and len(finished) == 9  # half, but for rows that are done and not yet dropped


def test_aborted_requests_do_not_wait_for_a_place(module, tokenizer):
    engine = joining(module, tokenizer, max_num_seqs=1)

    async def main():
        running = asyncio.create_task(engine.generate(Request([5, 6], LONG, request_id="running")))
        while not engine.stats()["batches"]:
            await asyncio.sleep(0)
        for i in range(5):
            waiting = asyncio.create_task(engine.generate(Request([5, 6], LONG, request_id=str(i))))
            await asyncio.sleep(0)
            engine.abort(str(i))
            assert (await waiting).finish_reason == "abort" and not engine._waiting
        return await running

    assert len(asyncio.run(main()).token_ids) == 40


def test_the_batch_does_not_grow_wider_than_its_rows_need(module, tokenizer, monkeypatch):
    """Requests follow each other without a pause, so that the batch never ends."""
    widths, forward = [], module.forward
    monkeypatch.setattr(
        module, "forward", lambda **inputs: widths.append(inputs["attention_mask"].shape[1]) or forward(**inputs)
    )
    requests = [([5, 6], Sampling(max_tokens=6, ignore_eos=True, seed=i)) for i in range(40)]
    engine = joining(module, tokenizer)
    one_after_another(engine, requests, steps_between=3)
    assert engine.stats()["batches"] == 40 and engine.stats()["generated_tokens"] == 240
    assert max(widths) <= 24


def test_a_window_model_finishes_its_batch_first(tmp_path, generate_all):
    folder = write_tiny_model(tmp_path, model_type="mistral", context=64, sliding_window=8)
    module, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    requests = [([5, 6], LONG), ([7, 8, 9], Sampling(max_tokens=2, ignore_eos=True))]
    got, finished = one_after_another(joining(module, tokenizer), requests)
    assert finished == [0, 1]
    assert [c.token_ids for c in got] == [c.token_ids for c in generate_all(HFEngine(module, tokenizer), requests)]


def test_a_join_that_fails_ends_both_and_not_the_engine(module, tokenizer, monkeypatch):
    def no_room(*_, **__):
        raise MemoryError("no room")

    engine = joining(module, tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr("burnish.rollout.hf.batch._widened", no_room)

        async def main():
            calls = [asyncio.create_task(engine.generate(Request([5, 6], LONG, request_id="long")))]
            while not engine.stats()["batches"]:
                await asyncio.sleep(0)
            calls.append(asyncio.create_task(engine.generate(Request([7], LONG, request_id="newcomer"))))
            return await asyncio.gather(*calls, return_exceptions=True)

        errors = asyncio.run(main())
    assert [str(error) for error in errors] == [
        f"request {name}: MemoryError: no room" for name in ("long", "newcomer")
    ]
    assert one_after_another(engine, [([5, 6], Sampling(max_tokens=2, ignore_eos=True))])[1] == [0]


def test_a_newcomer_that_fails_leaves_the_others_alone(module, tokenizer, monkeypatch):
    forward = module.forward

    def no_long_prompts(**inputs):
        if inputs["input_ids"].shape[1] > 10:
            raise MemoryError("no room")
        return forward(**inputs)

    monkeypatch.setattr(module, "forward", no_long_prompts)
    engine = joining(module, tokenizer)

    async def main():
        long = asyncio.create_task(engine.generate(Request([5, 6], LONG, request_id="long")))
        while not engine.stats()["batches"]:
            await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="request newcomer: MemoryError: no room"):
            await engine.generate(Request([5] * 20, LONG, request_id="newcomer"))
        return await long

    assert len(asyncio.run(main()).token_ids) == 40
