"""What an engine must keep through its life: the module's mode, the pool and its loops; also after a wake without
memory, a loop that stops and a step that never ends."""

import asyncio
import copy
import gc
from dataclasses import replace

import pytest
import torch

from burnish.errors import EngineLost, RolloutError
from burnish.rollout.native.engine import NativeEngine
from burnish.rollout.native.kv_pool import KVPool
from burnish.rollout.native.runner import Stuck
from tests.rollout.asking import LONG, passes, start, until
from tests.rollout.native.exact import check_exact, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, build

aheads = pytest.mark.parametrize("ahead", [0, 3])
DROPOUT = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


# The module's mode


def modes(module):
    return {child.training for child in module.modules()}


@aheads
@pytest.mark.parametrize("trains", [True, False])
def test_the_mode_after_an_abort_an_answer_and_a_failure(native, swap_decoder, ahead, trains):
    module = build("gpt2", DROPOUT).train(trains)
    engine = native(module, ahead=ahead)

    async def main():
        long = start(engine, "long")
        await start(engine, "short", sampling=replace(LONG, max_tokens=3))
        engine.abort("long")  # by one that has ended
        assert len((await long).token_ids) < 50 and modes(module) == {trains}
        whole = await start(engine, "whole")
        assert modes(module) == {trains}, "callers continue before the module is as it was"
        stopping = replace(LONG, stop_token_ids=(whole.token_ids[5],))
        stopped = await start(engine, "stopped", sampling=stopping)
        assert modes(module) == {trains} and stopped.finish_reason == "stop"
        asked = [([5, 6], LONG), ([5, 6], stopping)]
        check_exact(copy.deepcopy(module).eval(), asked, [whole, stopped], context=CONTEXT)  # without dropout
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.05)
        engine.publish(None, 1)
        assert modes(module) == {trains}
        check_exact(copy.deepcopy(module).eval(), asked[:1], [await start(engine, "moved")], context=CONTEXT)
        swap_decoder(engine, lambda decoder: broken)
        with pytest.raises(RolloutError, match="no room"):
            await start(engine, "b")
        assert modes(module) == {trains}

    def broken(*args, **kwargs):
        raise MemoryError("no room")

    asyncio.run(main())
    assert modes(module) == {trains}


# The pool


def test_a_wake_without_memory_leaves_the_engine_asleep(native, module, monkeypatch):
    engine = native(module, blocks=None, max_num_seqs=4)
    requests = random_requests(6, seed=1)
    expected = [c.token_ids for c in engine.run(requests)]
    engine.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(engine.pool, "fitting_blocks", lambda wanted, share: 3)
        with pytest.raises(RolloutError, match=r"one sequence may have 96; free memory"):
            engine.wake()
    with pytest.raises(RolloutError, match=r"call wake\(\)"):
        engine.run(requests)
    with pytest.raises(RolloutError, match=r"call wake\(\)"):
        engine.publish(None, 1)
    assert engine.stats()["kv_blocks"] == 0
    engine.wake()
    engine.publish(None, 1)
    assert [c.token_ids for c in engine.run(requests)] == expected


def test_a_context_cut_to_the_pool_bears_a_little_less_memory(native, module, monkeypatch):
    """Memory is counted again on every wake, and is never quite the same; also while the engine is made."""
    counts, memory = iter([11]), {"blocks": 10}  # of 8 tokens; the context of 96 needs 13
    monkeypatch.setattr(KVPool, "_room", lambda pool, share: next(counts, memory["blocks"]) * pool.block_bytes)
    engine = native(module, blocks=None, block_size=8, max_num_seqs=4)
    assert 40 <= engine.context < 80  # 80 fit, but not for long
    requests = [(prompt, replace(LONG, max_tokens=None)) for prompt in random_prompts(5, seed=4)]
    whole = engine.run(requests)
    check_exact(module, requests, whole, context=engine.context)
    for blocks in (11, 9, 12):
        memory["blocks"] = blocks
        engine.sleep()
        engine.wake()
        assert [c.token_ids for c in engine.run(requests)] == [c.token_ids for c in whole]
    engine.sleep()
    memory["blocks"] = 5
    with pytest.raises(RolloutError, match="free memory"):
        engine.wake()


def test_sleep_after_an_abort_takes_no_memory_again(native, module):
    engine = native(module, ahead=3)

    async def main():
        before = engine.stats()["generated_tokens"]
        task = start(engine, "a")
        await until(lambda: engine.stats()["generated_tokens"] > before + 3)
        engine.abort("a")
        engine.sleep()
        await passes(60)  # the driver ends meanwhile
        await task
        assert engine.pool.blocks == 0 and all(not layer.keys.numel() for layer in engine.pool.layers)

    asyncio.run(main())
    assert engine.stats()["kv_blocks"] == 0 and all(not layer.keys.numel() for layer in engine.pool.layers)
    engine.wake()
    requests = random_requests(5, seed=2)
    check_exact(module, requests, engine.run(requests), context=CONTEXT)


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

    async def continues():
        before = engine.stats()["generated_tokens"]
        tasks = [start(engine, str(i), *request) for i, request in enumerate(requests)]
        await until(lambda: engine.stats()["generated_tokens"] > before + 10)
        first.close()
        gc.collect()
        return await asyncio.gather(*tasks)

    try:
        first.run_until_complete(begins())
        completions = second.run_until_complete(continues())
    finally:
        first.close()
        second.close()
    check_exact(module, requests, completions, context=CONTEXT)
    check_exact(module, requests, engine.run(requests), context=CONTEXT)


# The next engine


def test_a_lost_engine_gives_its_pool_back_before_the_next_one_takes_its_own(native, module, monkeypatch, caplog):
    """Unless a step may still write to it."""
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
    blocks = new.pool.blocks
    monkeypatch.setattr(new, "_is_idle", lambda: False)
    new.renewed()
    assert new.pool.blocks == blocks and "its KV pool is not freed" in caplog.text


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
