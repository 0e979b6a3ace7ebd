"""The core of the other files on a CUDA device: kernels, graphs, the pool at another address, and bfloat16.

`test_architectures.py` runs there too.
"""

import asyncio
from dataclasses import replace

import pytest
import torch

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from tests.rollout.asking import start, until
from tests.rollout.native.exact import check_exact, difference_to_training, greedy, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, build, family, very_tiny
from tests.rollout.native.test_architectures import PROMPTS, SHORT
from tests.rollout.native.test_load import random_load, under_load
from tests.rollout.native.test_weights import optimiser_step

pytestmark = pytest.mark.gpu
fused_or_not = pytest.mark.parametrize("fused", [True, False], ids=["fused", "module"])
graphs_on_off = pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
FREE = Sampling(max_tokens=20, ignore_eos=True)


@pytest.mark.parametrize("kind", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 0.8}])
def test_tokens_are_those_of_the_cpu(native, module, kind):
    """Same seeds, same noise: only a near-tie may make a difference."""
    requests = [(prompt, replace(FREE, seed=seed, **kind)) for seed, prompt in enumerate(random_prompts(40, seed=6))]
    here = native(module).run(requests)
    there, again = (native(family("qwen2").cuda()).run(requests) for _ in range(2))
    assert there == again, "bit for bit"
    same = sum(one.token_ids == other.token_ids for one, other in zip(here, there, strict=True))
    assert same >= 39
    check_exact(module, requests, there, context=CONTEXT, atol=2e-5)


@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 5}, {"ahead": 0}, {"ahead": 4}, {"blocks": 10}])
@fused_or_not
def test_graphs_change_nothing(native, fused, settings):
    module = family("qwen2").cuda()
    requests = random_requests(30, seed=7)
    expected = native(module, fused=fused, graphs=False, **settings).run(requests)
    engine = native(module, fused=fused, graphs=True, **settings)
    for _ in range(2):
        got = engine.run(requests)
        assert [c.token_ids for c in got] == [c.token_ids for c in expected]
        assert [(c.finish_reason, c.stop) for c in got] == [(c.finish_reason, c.stop) for c in expected]
        for one, other in zip(got, expected, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=2e-5)


@graphs_on_off
@fused_or_not
def test_load_with_preemption(native, one_by_one, fused, graphs):
    module = very_tiny(context=256).cuda()
    engine = native(module, blocks=40, max_num_seqs=64, max_num_batched_tokens=128, ahead=2, fused=fused, graphs=graphs)
    stems = random_prompts(12, seed=4, shortest=20, longest=50)
    requests = random_load(1500, 2, stems, longest=80, most=120, usual=40)

    pauses = {i: i % 23 for i in range(0, 1500, 40)}
    completions = under_load(engine, requests, dict.fromkeys(range(0, 1500, 20), 3), pauses)
    checked = check_exact(module, requests, completions, context=256, atol=5e-5)
    stats = engine.stats()
    print(f"{checked}; {stats}")
    assert checked.near_ties <= 5
    assert stats["preemptions"] > 0 and stats["shared_tokens"] > 0 and stats["prefix_hit_tokens"] > 0
    few = range(0, 1500, 97)
    alone = one_by_one(module, [requests[i] for i in few])
    same = sum(
        completions[i].token_ids == one.token_ids[: len(completions[i].token_ids)]
        for i, one in zip(few, alone, strict=True)
    )
    assert same >= len(few) - 1
    engine.publish(None, 1)
    assert engine.stats()["kv_blocks_cached"] == 0


def wide(layers=4):
    """Four layers as wide as those of Qwen2.5-0.5B, with its vocabulary; random weights as they are initialised."""
    return build(
        "qwen2",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
            "rope_theta": 1_000_000.0,
        },
        sharpness=1,
        layers=layers,
        context=1024,
        dtype=torch.bfloat16,
    )


@fused_or_not
@pytest.mark.parametrize("make", [lambda: family("qwen2").to(torch.bfloat16), wide], ids=["tiny", "wide"])
def test_bfloat16_log_probs_are_near_those_of_training(native, make, fused):
    module = make().cuda()
    vocabulary = module.config.vocab_size
    prompts = random_prompts(16, seed=3, shortest=4, longest=40, vocabulary=vocabulary)
    requests = [(prompt, replace(FREE, max_tokens=48, seed=seed)) for seed, prompt in enumerate(prompts * 4)]
    completions = native(module, fused=fused, blocks=1000).run(requests)
    difference = difference_to_training(module, requests, completions)
    print(f"mean |Δ log-prob| {difference.mean():.6f}, largest {difference.max():.4f}, {len(difference)} tokens")
    assert difference.mean() < 0.005


@graphs_on_off
def test_sleep_frees_the_pool_and_graphs_work_after_wake(native, graphs):
    module = family("qwen2").cuda()
    engine = native(module, graphs=graphs, blocks=20_000)
    requests = random_requests(20, seed=5)
    expected = engine.run(requests)
    torch.cuda.synchronize()
    awake = torch.cuda.memory_allocated()
    pool = 20_000 * 16 * 2 * 2 * 2 * 8 * 4  # blocks × tokens × layers × keys and values × heads × size × bytes
    for _ in range(3):
        engine.sleep()
        assert awake - torch.cuda.memory_allocated() >= 0.9 * pool
        in_the_way = torch.empty(pool + 4096, dtype=torch.uint8, device="cuda")  # the pool comes back elsewhere
        with pytest.raises(RolloutError, match=r"wake\(\)"):
            engine.run(requests)
        engine.wake()
        got = engine.run(requests)
        assert [c.token_ids for c in got] == [c.token_ids for c in expected]
        assert [c.log_probs for c in got] == [c.log_probs for c in expected]
        del in_the_way


def test_abort_and_cancel_on_the_device(native):
    engine = native(family("qwen2").cuda(), ahead=3)
    whole = engine.run([(SHORT, replace(FREE, max_tokens=60))])[0]

    async def main():
        tasks = [start(engine, str(seed), SHORT, replace(FREE, max_tokens=60, seed=seed)) for seed in range(3)]
        before = engine.stats()["generated_tokens"]
        await until(lambda: engine.stats()["generated_tokens"] >= before + 15)
        engine.abort("0")
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    aborted, cancelled, kept = asyncio.run(main())
    assert isinstance(cancelled, asyncio.CancelledError) and len(kept.token_ids) == 60
    assert aborted.token_ids == whole.token_ids[: len(aborted.token_ids)] and len(aborted.token_ids) < 60


@graphs_on_off
def test_after_an_optimiser_step_graphs_read_the_new_weights(native, graphs):
    module = family("qwen2").cuda()
    engine = native(module, graphs=graphs)
    requests = [(prompt, replace(FREE, temperature=0)) for prompt in PROMPTS]
    before = [c.token_ids for c in engine.run(requests)]
    where = [parameter.data_ptr() for parameter in module.parameters()]
    for version in (1, 2):
        optimiser_step(module)
        engine.publish(None, version)
        assert [parameter.data_ptr() for parameter in module.parameters()] == where
        after = [c.token_ids for c in engine.run(requests)]
        assert after == [greedy(module, prompt, 20, eos_token_id=None) for prompt in PROMPTS] and after != before
        before = after
