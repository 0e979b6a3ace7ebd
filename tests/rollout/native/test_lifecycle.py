"""What an engine must keep through its life: the module's mode, the pool, its loops, and what each caller is told.

Failures are tried one by one: a wake without memory, a loop that stops, a callback that raises, a step that never ends.
"""

import asyncio
import copy
import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from burnish.errors import ConfigError, EngineLost, NotAvailable, RolloutError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.native.engine import NativeEngine
from burnish.rollout.native.flight import Stuck
from burnish.rollout.native.kv_pool import KVPool
from burnish.rollout.native.sequence import History
from tests.rollout.native.asking import LONG, aheads, start, until
from tests.rollout.native.exact import check_exact, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, FAMILIES, build, family

GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
DROPOUT = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


def pool_addresses(engine):
    return [tensor.data_ptr() for layer in engine.pool.layers for tensor in (layer.keys, layer.values)]


# The canary


def zero_logits(decoder):
    return lambda *args, **kwargs: torch.zeros_like(decoder(*args, **kwargs))


def no_positions(decoder):
    return lambda ids, positions, *rest, **kwargs: decoder(ids, torch.zeros_like(positions), *rest, **kwargs)


def noisy(decoder):
    generator = torch.Generator().manual_seed(0)

    def call(*args, **kwargs):
        logits = decoder(*args, **kwargs)
        noise = torch.randn(logits.shape, generator=generator)
        return logits + (0.4 * logits.float().std(-1, keepdim=True) * noise).to(logits)

    return call


@pytest.mark.parametrize("wrong", [zero_logits, no_positions, noisy])
@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_a_bfloat16_decoder_that_is_wrong_fails_the_canary(native, swap_decoder, name, wrong):
    engine = native(build(*FAMILIES[name], dtype=torch.bfloat16))
    engine.publish(None, 1)
    swap_decoder(engine, wrong)
    with pytest.raises(RolloutError, match=r"does not compute what the trained module \(\w+\) does"):
        engine.publish(None, 2)
    assert engine.version == 1


def test_a_float64_module(native):
    module = build(*FAMILIES["qwen2"], dtype=torch.float64)
    engine = native(module)
    engine.publish(None, 1)
    requests = random_requests(6, seed=3)
    check_exact(module, requests, engine.run(requests), context=CONTEXT)


def test_weights_that_are_not_numbers_are_called_so(native):
    module = family("qwen2")
    engine = native(module)
    weight = module.get_parameter("model.norm.weight")
    healthy = weight.detach().clone()
    with torch.no_grad():
        weight[3] = float("nan")
    with pytest.raises(RolloutError, match=r"the trained weights give logits that are NaN"):
        engine.publish(None, 1)
    assert engine.version == 0
    engine.publish([{"model.norm.weight": healthy}], 2)
    request = ([5, 6], LONG)
    check_exact(module, [request], engine.run([request]), context=CONTEXT)


# The module's mode


def reference(module):
    """A copy without dropout. Its weights are those of now."""
    return copy.deepcopy(module).eval()


def modes(module):
    return {child.training for child in module.modules()}


@aheads
@pytest.mark.parametrize("ends_by", ["length", "stop"])
def test_training_continues_between_two_answers_in_one_loop(native, ahead, ends_by):
    module = build("gpt2", DROPOUT).train()
    engine = native(module, ahead=ahead)
    prompt = [5, 6, 7]
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    if ends_by == "stop":
        whole = native(reference(module)).run([(prompt, sampling)])[0].token_ids
        sampling = replace(sampling, stop_token_ids=(whole[5],))

    async def main():
        pairs = []
        for version in range(3):
            completion = await start(engine, "a", prompt, sampling)
            assert modes(module) == {True}, "callers go on before the module is as it was"
            pairs.append((reference(module), completion))
            module.train()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.05)
            engine.publish(None, version + 1)
            assert modes(module) == {True}
        return pairs

    pairs = asyncio.run(main())
    assert pairs[0][1].finish_reason == ends_by
    for module_then, completion in pairs:
        check_exact(module_then, [(prompt, sampling)], [completion], context=CONTEXT)


@aheads
def test_the_mode_after_an_abort_and_after_a_failure(native, swap_decoder, ahead):
    module = build("gpt2", DROPOUT).train()
    engine = native(module, ahead=ahead)

    async def aborted():
        seen = []
        task = start(engine, "a", on_token=lambda token, _: seen.append(token))
        await until(lambda: len(seen) > 2)
        engine.abort("a")
        await task
        assert modes(module) == {True}

    async def failed():
        with pytest.raises(RolloutError, match="no room"):
            await start(engine, "b")
        assert modes(module) == {True}

    def broken(*args, **kwargs):
        raise MemoryError("no room")

    asyncio.run(aborted())
    swap_decoder(engine, lambda decoder: broken)
    asyncio.run(failed())


def test_the_mode_when_the_last_others_are_aborted_by_one_that_ended(native):
    module = build("gpt2", DROPOUT).train()
    engine = native(module)

    async def main():
        long = start(engine, "long")
        await start(engine, "short", sampling=replace(LONG, max_tokens=3))
        engine.abort("long")
        await long
        assert modes(module) == {True}

    asyncio.run(main())


def test_a_module_in_evaluation_mode_stays_in_it(native):
    module = build("gpt2", DROPOUT)
    engine = native(module)

    async def main():
        for _ in range(2):
            await start(engine, "a")
            assert modes(module) == {False}
            engine.publish(None, 1)

    asyncio.run(main())
    assert modes(module) == {False}


# The pool


def test_a_wake_without_memory_leaves_the_engine_asleep(native, module, monkeypatch, generate_all):
    engine = native(module, blocks=None, max_num_seqs=4)
    requests = random_requests(6, seed=1)
    expected = [c.token_ids for c in engine.run(requests)]
    engine.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(engine.pool, "fitting_blocks", lambda wanted, share: 3)
        with pytest.raises(RolloutError, match=r"one sequence may have 96; free memory"):
            engine.wake()
    with pytest.raises(RolloutError, match=r"call wake\(\)"):
        generate_all(engine, requests)
    with pytest.raises(RolloutError, match=r"call wake\(\)"):
        engine.publish(None, 1)
    assert engine.stats()["kv_blocks"] == 0
    engine.wake()
    engine.publish(None, 1)
    assert [c.token_ids for c in engine.run(requests)] == expected


def test_release_leaves_no_address_behind(native, module):
    pool = native(module).pool
    assert pool._addresses.tolist() == [[layer.keys.data_ptr(), layer.values.data_ptr()] for layer in pool.layers]
    pool.release()
    assert not pool._addresses.any()
    assert pool.blocks == 0


def test_a_context_cut_to_the_pool_bears_a_little_less_memory(native, module, monkeypatch):
    """Memory is counted again on every wake, and is never quite the same."""
    memory = {"blocks": 11}  # of 8 tokens; the context of 96 needs 13
    monkeypatch.setattr(KVPool, "_room", lambda pool, share: memory["blocks"] * pool.block_bytes)
    engine = native(module, blocks=None, block_size=8, max_num_seqs=4)
    assert 40 <= engine.context < 80  # 80 fit, but not for long
    requests = [(prompt, replace(LONG, max_tokens=None)) for prompt in random_prompts(5, seed=4)]
    whole = engine.run(requests)
    check_exact(module, requests, whole, context=engine.context)
    for blocks in (10, 9, 12):
        memory["blocks"] = blocks
        engine.sleep()
        engine.wake()
        assert [c.token_ids for c in engine.run(requests)] == [c.token_ids for c in whole]
    engine.sleep()
    memory["blocks"] = 5
    with pytest.raises(RolloutError, match="free memory"):
        engine.wake()


def test_memory_that_shrinks_while_the_engine_is_made(native, module, monkeypatch):
    counts = iter([11, 10, 10, 10])
    monkeypatch.setattr(KVPool, "_room", lambda pool, share: next(counts) * pool.block_bytes)
    engine = native(module, blocks=None, block_size=8, max_num_seqs=4)
    request = (random_prompts(1, seed=4)[0], replace(LONG, max_tokens=None))
    check_exact(module, [request], engine.run([request]), context=engine.context)


@pytest.mark.parametrize("ends_by", ["stop id", "length"])
def test_the_end_of_a_loop_keeps_the_pool_and_what_it_holds(native, module, ends_by):
    engine = native(module, ahead=3, block_size=8)
    prompt = random_prompts(1, seed=7, shortest=30, longest=30)[0]
    whole = native(module).run([(prompt, LONG)])[0].token_ids
    sampling = replace(LONG, stop_token_ids=(whole[9],)) if ends_by == "stop id" else replace(LONG, max_tokens=10)
    where, hits = pool_addresses(engine), engine.stats()["prefix_hit_tokens"]
    for call in range(4):
        completion = asyncio.run(engine.generate(Request(prompt, sampling, request_id="a")))
        assert completion.token_ids == whole[: len(completion.token_ids)]
        assert pool_addresses(engine) == where
        assert engine.stats()["prefix_hit_tokens"] == hits + 24 * call  # three whole blocks of the prompt
    check_exact(module, [(prompt, sampling)], [completion], context=CONTEXT)


def test_sleep_after_an_abort_takes_no_memory_again(native, module):
    engine = native(module, ahead=3)

    async def main():
        before = engine.stats()["generated_tokens"]
        task = start(engine, "a")
        await until(lambda: engine.stats()["generated_tokens"] > before + 3)
        engine.abort("a")
        engine.sleep()
        for _ in range(60):  # the driver ends meanwhile
            await asyncio.sleep(0)
        await task
        assert engine.pool.blocks == 0 and all(not layer.keys.numel() for layer in engine.pool.layers)

    asyncio.run(main())
    assert engine.stats()["kv_blocks"] == 0 and all(not layer.keys.numel() for layer in engine.pool.layers)
    engine.wake()
    requests = random_requests(5, seed=2)
    check_exact(module, requests, engine.run(requests), context=CONTEXT)


def in_one(weights):
    return [weights]


def one_by_one(weights):
    return ({name: tensor} for name, tensor in weights.items())


@pytest.mark.parametrize("buckets", [in_one, one_by_one])
def test_tied_names_with_different_tensors_are_refused(native, buckets):
    module = family("qwen2-tied")
    engine = native(module)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= weights.keys()
    engine.publish([weights], 1)  # equal ones are welcome
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        different = weights | {name: weights[name] * 1.5}
        with pytest.raises(RolloutError, match=r"'(model\.embed_tokens|lm_head)\.weight' did not arrive: "):
            engine.publish(buckets(different), 2)
        assert engine.version == 1
    engine.publish(one_by_one(weights), 3)
    request = ([5, 6], LONG)
    check_exact(module, [request], engine.run([request]), context=CONTEXT)


# Event loops


@aheads
def test_a_loop_that_was_stopped_does_not_disturb_the_next_one(native, module, ahead):
    """Loop A stops while a request runs; its driver is collected in the middle of loop B's work."""
    engine = native(module, ahead=ahead)
    requests = random_requests(6, seed=8)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def begins():
        start(engine, "left", sampling=replace(LONG, max_tokens=60))
        await until(lambda: engine.stats()["generated_tokens"] > 2)

    async def goes_on():
        before = engine.stats()["generated_tokens"]
        tasks = [start(engine, str(i), *request) for i, request in enumerate(requests)]
        await until(lambda: engine.stats()["generated_tokens"] > before + 10)
        first.close()
        gc.collect()
        return await asyncio.gather(*tasks)

    try:
        first.run_until_complete(begins())
        completions = second.run_until_complete(goes_on())
    finally:
        first.close()
        second.close()
    check_exact(module, requests, completions, context=CONTEXT)
    check_exact(module, requests, engine.run(requests), context=CONTEXT)


# Errors


@aheads
def test_a_callback_that_raises_fails_its_own_request_alone(native, module, ahead):
    engine = native(module, ahead=ahead)
    requests = random_requests(8, seed=9)
    seen = []

    def broken(token, log_prob):
        seen.append(token)
        if len(seen) == 3:
            raise KeyError("the callback fails")

    async def main():
        others = [start(engine, str(i), *request) for i, request in enumerate(requests)]
        with pytest.raises(RolloutError, match="request broken: KeyError: 'the callback fails'") as raised:
            await start(engine, "broken", on_token=broken)
        return raised.value, await asyncio.gather(*others)

    error, completions = asyncio.run(main())
    assert isinstance(error.__cause__, KeyError)
    assert len(seen) == 3
    check_exact(module, requests, completions, context=CONTEXT)


class OutOfReach(ConfigError):
    """An error that says itself what to mend."""


@aheads
@pytest.mark.parametrize(
    "error,message",
    [
        (MemoryError("no room"), "request {name}: MemoryError: no room"),
        (RolloutError("lost"), "request {name}: lost"),
        (OutOfReach("mend this"), "mend this"),
        (NotAvailable("this model", "Use another"), "not available yet: this model. Use another"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_caller_of_a_failed_step_gets_its_own_error(native, module, swap_decoder, ahead, error, message):
    engine = native(module, ahead=ahead)

    def broken(*args, **kwargs):
        raise error

    swap_decoder(engine, lambda decoder: broken)

    async def main():
        tasks = [start(engine, name, prompt=(5, 6 + i)) for i, name in enumerate("abc")]
        return await asyncio.gather(*tasks, return_exceptions=True)

    errors = asyncio.run(main())
    assert [str(e) for e in errors] == [message.format(name=name) for name in "abc"]
    assert len({id(e) for e in errors}) == 3 and error not in errors
    assert all(e.__cause__ is error for e in errors)


def test_nan_logits_name_every_request_and_the_first(native):
    module = family("qwen2")
    with torch.no_grad():
        module.get_input_embeddings().weight[200] = float("nan")
    engine = native(module)

    async def main():
        tasks = [start(engine, name, prompt=prompt) for name, prompt in (("well", (5, 6)), ("sick", (5, 200)))]
        return await asyncio.gather(*tasks, return_exceptions=True)

    errors = asyncio.run(main())
    for name, error in zip(("well", "sick"), errors, strict=True):
        assert str(error).startswith(f"request {name}: ") and "first for request sick" in str(error)
    assert errors[0] is not errors[1]


@pytest.mark.parametrize("asleep", [False, True])
def test_an_engine_that_was_stuck_takes_no_orders(module, tokenizer, swap_decoder, asleep):
    engine = NativeEngine(module, tokenizer, max_num_seqs=4, blocks=40, block_size=8)

    def stuck(decoder):
        def call(*args, **kwargs):
            raise Stuck("the rollout engine is stuck")

        return call

    swap_decoder(engine, stuck)
    with pytest.raises(RolloutError, match="stuck"):
        asyncio.run(engine.generate(Request([5, 6], LONG, request_id="a")))
    orders = [lambda: engine.publish(None, 1), engine.sleep, engine.wake]
    for order in reversed(orders) if asleep else orders:
        with pytest.raises(RolloutError, match="was stuck and cannot be used any more; make a new one"):
            order()
    assert (engine.version, engine.stats()["kv_blocks_used"]) == (0, 0)


# The next engine


def test_a_lost_engine_gives_its_pool_back_before_the_next_one_takes_its_own(native, module, monkeypatch):
    engine, held, make = native(module), [], NativeEngine._make_pool
    expected = engine.run([([5, 6], LONG)])[0].token_ids
    engine._broken = Stuck("a step did not end")

    def made(new):
        held.append(engine.pool.blocks)
        make(new)

    monkeypatch.setattr(NativeEngine, "_make_pool", made)
    new = engine.renewed()
    assert held == [0] and new.pool.blocks and new.lost() is None
    assert new.run([([5, 6], LONG)])[0].token_ids == expected
    assert engine.lost() == "a step did not end"
    engine.renewed()  # as where the first could not be made


def test_memory_that_a_step_may_still_write_to_is_not_given_back(module, tokenizer, monkeypatch, caplog):
    engine = NativeEngine(module, tokenizer, max_num_seqs=4, blocks=40, block_size=8)
    monkeypatch.setattr(engine, "_is_idle", lambda: False)
    engine.renewed()
    assert engine.pool.blocks == 40 and "its KV pool is not freed" in caplog.text


def test_a_step_that_lands_late_for_a_publish_leaves_the_engine_lost(native, module, monkeypatch):
    """Weights change between two steps: what is under way is landed before, and may hang like any other."""
    engine = native(module, ahead=2)

    def stuck(step):
        raise Stuck("its kernels have not ended")

    async def main():
        task = start(engine, "a")
        await until(lambda: engine._flights)
        monkeypatch.setattr(engine, "_land", stuck)
        engine.pause()
        with pytest.raises(EngineLost, match="have not ended"):
            await task

    asyncio.run(main())
    assert engine.lost() == "its kernels have not ended"


@aheads
@pytest.mark.parametrize("aborter,victim", ["ab", "ba"])
def test_a_callback_aborts_another_request(native, module, ahead, aborter, victim):
    """Of the same step, the other's token may have been told already or not: both are whole."""
    engine = native(module, ahead=ahead)
    prompts, seen = {"a": [5, 6], "b": [7, 8, 9]}, {"a": [], "b": []}
    whole = dict(zip("ab", engine.run([(prompt, LONG) for prompt in prompts.values()]), strict=True))

    def told(name):
        def on_token(token, log_prob):
            seen[name].append(token)
            if name == aborter and len(seen[name]) == 4:
                engine.abort(victim)

        return on_token

    async def main():
        tasks = [start(engine, name, prompts[name], on_token=told(name)) for name in "ab"]
        return dict(zip("ab", await asyncio.gather(*tasks), strict=True))

    completions = asyncio.run(main())
    for name, completion in completions.items():
        assert completion.token_ids == seen[name] == whole[name].token_ids[: len(seen[name])], name
        assert len(completion.log_probs) == len(seen[name])
    assert (completions[victim].finish_reason, completions[aborter].finish_reason) == ("abort", "length")
    assert 3 <= len(seen[victim]) <= 5
    assert engine.stats()["aborted"] == 1


# The history of what was sampled


def test_a_history_that_grows_keeps_what_was_sampled():
    history = History()
    rng = np.random.default_rng(0)
    slots, expected = [], {}
    for limit, tokens in ((4, 4), (9, 5), (3, 3), (40, 30), (41, 0)):
        slots.append(history.take(limit))
        expected[slots[-1]] = ([], [])
        for _ in range(tokens):  # the newest slot alone, so that counts differ
            token, log_prob = int(rng.integers(1000)), np.float32(-rng.random())
            history.append(np.array(slots[-1:]), np.array([token]), np.array([log_prob]))
            expected[slots[-1]][0].append(token)
            expected[slots[-1]][1].append(float(log_prob))
        assert {slot: history.sampled(slot) for slot in slots} == expected
    for _ in range(200):  # more slots than there are
        slot = history.take(50)
        expected[slot] = ([], [])
    assert len(expected) == 205
    assert {slot: history.sampled(slot) for slot in expected} == expected
    history.give_back(slots[0])
    again = history.take(60)
    assert again == slots[0] and history.sampled(again) == ([], [])
    assert all(history.sampled(slot) == expected[slot] for slot in slots[1:])
