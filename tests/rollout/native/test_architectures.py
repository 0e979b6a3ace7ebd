"""Many architectures: greedy tokens are those of transformers' `generate`, log-probs those of a plain forward.

Models that keep something else than ordinary keys and values are refused by name; none is ever wrong.
"""

from functools import cache

import pytest
import torch

from burnish.errors import NotAvailable, RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.native.exact import check_exact, difference_to_training, greedy, random_prompts
from tests.rollout.native.models import CONTEXT, DOUBTFUL, FAMILIES, FUSED, OTHER_KINDS, build, family

NEW = 24
SHORT, LONG, OTHER = (random_prompts(1, seed, length, length)[0] for seed, length in ((1, 4), (2, 33), (3, 17)))
PROMPTS = [SHORT, LONG, OTHER, SHORT, LONG, SHORT]  # windows are 12: longer than one, and crossing it while it goes on
WAYS = [(name, fused) for name in FAMILIES for fused in ([True, False] if name in FUSED else [True])]
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
both_ways = pytest.mark.parametrize("name,fused", WAYS, ids=[f"{n}-{'fused' if f else 'module'}" for n, f in WAYS])


@cache
def expected(name, device="cpu"):
    module = family(name).to(device)
    tokens = {tuple(prompt): greedy(module, prompt, NEW) for prompt in (SHORT, LONG, OTHER)}
    for prompt, completion in tokens.items():
        assert len(set(completion)) > 3 or len(completion) < NEW, f"one token over and over after {prompt}: weak model"
    return [tokens[tuple(prompt)] for prompt in PROMPTS]


@devices
@both_ways
def test_greedy_equals_transformers_generate(native, name, fused, device):
    engine = native(family(name).to(device), fused=fused, max_num_batched_tokens=16)  # long prompts are cut
    requests = [(prompt, Sampling(temperature=0, max_tokens=NEW)) for prompt in PROMPTS]
    assert [c.token_ids for c in engine.run(requests)] == expected(name, device)
    assert engine.run(requests[1:2])[0].token_ids == expected(name, device)[1]


@devices
@both_ways
def test_sampled_tokens_and_log_probs_equal_a_plain_forward(native, name, fused, device):
    module = family(name).to(device)
    engine = native(module, fused=fused)
    requests = [
        (prompt, Sampling(temperature=temperature, max_tokens=NEW, seed=seed, ignore_eos=True))
        for seed, prompt in enumerate(PROMPTS)
        for temperature in (0.7, 1.0, 1.4)
    ]
    atol = 1e-5 if device == "cpu" else 2e-5
    checked = check_exact(module, requests, engine.run(requests), context=CONTEXT, atol=atol)
    assert checked.tokens == len(requests) * NEW and checked.near_ties <= 1


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "gemma2", "mistral-window", "phi3"])
def test_bfloat16_log_probs_are_near_those_of_training(native, name):
    module = build(*FAMILIES[name], sharpness=3, dtype=torch.bfloat16)
    requests = [(prompt, Sampling(max_tokens=NEW, seed=seed)) for seed, prompt in enumerate(PROMPTS * 3)]
    difference = difference_to_training(module, requests, native(module).run(requests))
    print(f"{name}: mean |Δ log-prob| {difference.mean():.6f}, largest {difference.max():.4f}")
    assert difference.mean() < 0.005


@pytest.mark.parametrize("wrapped", [False, True], ids=["injected", "wrapped"])
def test_adapters_are_part_of_the_model(native, wrapped):
    """The fused decoder knows nothing of low-rank updates, so it must leave such a model to the module path."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = peft.get_peft_model(family("qwen2"), config)
    module = (module if wrapped else module.get_base_model()).eval()
    requests = [(prompt, Sampling(temperature=0, max_tokens=NEW, ignore_eos=True)) for prompt in PROMPTS]
    completions = native(module).run(requests)
    check_exact(module, requests, completions, context=CONTEXT)
    assert completions[1].token_ids != expected("qwen2")[1]


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_kinds_are_refused_by_name(tokenizer, name):
    module = build(name, OTHER_KINDS[name])
    with pytest.raises(NotAvailable, match=type(module).__name__):
        NativeEngine(module, tokenizer, max_model_len=32, blocks=16)


@pytest.mark.parametrize("name", DOUBTFUL)
def test_never_wrong_but_perhaps_refused(native, name):
    module = build(name, DOUBTFUL[name])
    try:
        engine = native(module, max_model_len=CONTEXT)
    except NotAvailable as refused:
        assert type(module).__name__ in str(refused)
        return
    except RolloutError as refused:  # the canary of a new engine
        assert "does not compute what the trained module does" in str(refused)
        return
    settings = {"eos_token_id": 1, "pad_token_id": 0}
    prompts = [SHORT, LONG, SHORT]
    completions = engine.run([(prompt, Sampling(temperature=0, max_tokens=NEW)) for prompt in prompts])
    wanted = [greedy(module, prompt, NEW, **settings) for prompt in prompts]
    assert [c.token_ids for c in completions] == wanted
