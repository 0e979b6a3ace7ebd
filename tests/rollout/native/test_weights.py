"""Weights: read where they lie, proven on every publish, and a pool that is given back and taken again."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from tests.rollout.asking import LONG
from tests.rollout.native.exact import check_exact, random_prompts, random_requests, tensor_bytes
from tests.rollout.native.models import CONTEXT, FAMILIES, build, family

GREEDY = [(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for prompt in random_prompts(3, seed=2)]
both_ways = pytest.mark.parametrize("fused", [True, False], ids=["fused", "module"])


def optimiser_step(module, rate=0.5):
    ids = torch.tensor([list(range(5, 40))], device=module.device)
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    module(ids, labels=ids).loss.backward()
    optimiser.step()
    optimiser.zero_grad()


@pytest.mark.parametrize(
    "name,fused", [("qwen2", True), ("qwen2", False), ("qwen2-tied", True), ("qwen3", True), ("llama-biased", True)]
)
def test_every_parameter_is_read_where_it_lies(native, name, fused):
    module = family(name)
    engine = native(module, fused=fused)
    request = (random_prompts(1, seed=3, shortest=9)[0], Sampling(max_tokens=3, ignore_eos=True))
    last = None
    for version, (parameter_name, parameter) in enumerate(module.named_parameters(), start=1):
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version))
            parameter.add_(noise * parameter.abs().mean().clamp(min=0.2))
        engine.publish(None, version)
        completion = engine.run([request])[0]
        check_exact(module, [request], [completion], context=CONTEXT)
        assert completion.log_probs != last, parameter_name
        last = completion.log_probs


@both_ways
def test_an_engine_holds_no_copy_of_the_weights(native, fused):
    module = build("qwen2", {}, hidden_size=128, layers=3, context=64)
    weights = sum(parameter.nbytes for parameter in module.parameters())
    before = tensor_bytes()
    engine = native(module, fused=fused, blocks=8, max_num_seqs=4, max_num_batched_tokens=32)
    engine.run(GREEDY[:1])
    assert tensor_bytes() - before < 0.35 * weights


def test_the_module_can_still_be_saved_copied_and_trained(native, tmp_path):
    """Whatever engines, here two of them, did to the layout of parameters is nobody else's business."""
    module = family("qwen2")
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    engine, other = native(module), native(module, fused=False)
    tokens = [c.token_ids for c in engine.run(GREEDY)]
    assert [c.token_ids for c in other.run(GREEDY)] == tokens == [c.token_ids for c in engine.run(GREEDY)]
    assert module.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    module.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    twin = copy.deepcopy(module)
    optimiser_step(twin)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    module.load_state_dict(twin.state_dict())
    for made in (engine, other):
        made.publish(None, 1)
        check_exact(twin, GREEDY, made.run(GREEDY), context=CONTEXT)


@both_ways
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"]
)
def test_a_parameter_that_moved_is_named(native, name, fused):
    module = family("qwen2")
    engine = native(module, fused=fused)
    engine.publish(None, 1)
    parameter = module.get_parameter(name)
    if name == "model.norm.weight":  # another object
        module.model.norm.weight = torch.nn.Parameter(parameter.detach() * 1.5)
    else:
        parameter.data = parameter.data.clone() * 1.5
    with pytest.raises(RolloutError, match=name.replace(".", r"\.")):
        engine.publish(None, 2)


def zero_logits(decoder):
    return lambda *args, **kwargs: torch.zeros_like(decoder(*args, **kwargs))


def no_positions(decoder):
    return lambda ids, positions, *rest, **kwargs: decoder(ids, torch.zeros_like(positions), *rest, **kwargs)


def noisy(share):
    """Of the spread of logits."""
    generator = torch.Generator().manual_seed(0)

    def disturbed(logits):
        noise = torch.randn(logits.shape, generator=generator)
        return logits + (share * logits.float().std(-1, keepdim=True) * noise).to(logits)

    return lambda decoder: lambda *args, **kwargs: disturbed(decoder(*args, **kwargs))


ROUGH = [zero_logits, no_positions, noisy(0.4)]
WRONG = [(torch.bfloat16, name, True, wrong) for name in ("qwen2", "gpt2") for wrong in ROUGH]
WRONG += [(torch.float32, "qwen2", fused, noisy(share)) for fused in (True, False) for share in (0.003, float("nan"))]


@pytest.mark.parametrize("dtype,name,fused,wrong", WRONG)
def test_a_decoder_that_computes_something_else_fails_the_canary(native, swap_decoder, dtype, name, fused, wrong):
    engine = native(build(*FAMILIES[name], dtype=dtype), fused=fused)
    engine.publish(None, 1)
    swap_decoder(engine, wrong)
    with pytest.raises(RolloutError, match=r"does not compute what the trained module \(\w+\) does"):
        engine.publish(None, 2)
    assert engine.version == 1 and engine.stats()["kv_blocks_used"] == 0


def test_after_weights_that_generate_something_else_nothing_is_generated(native, swap_decoder):
    """Where the weights were not touched, the old version continues."""
    module = family("qwen2")
    engine, factor = native(module), 1.1
    swap_decoder(engine, lambda decoder: lambda *args: decoder(*args) * factor)
    for version, weights in ((1, None), (2, [module.state_dict()])):
        factor = 1.1
        with pytest.raises(RolloutError, match="does not compute"):
            engine.publish(weights, version)
        factor = 1.0
        if weights is None:
            assert engine.run(GREEDY)[0].policy_version == 0
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run(GREEDY)
    engine.publish([module.state_dict()], 3)
    assert engine.run(GREEDY)[0].policy_version == 3


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


def test_sleep_frees_the_pool_and_wake_takes_it_again(native):
    module, requests = family("qwen2"), random_requests(8, seed=5)
    engine = native(module, blocks=400)
    where = [parameter.data_ptr() for parameter in module.parameters()]
    before, awake = engine.run(requests), tensor_bytes()
    engine.sleep()
    optimiser_step(module)
    layers, heads, head_size = 2, 2, 8
    pool = 400 * 8 * layers * 2 * heads * head_size * 4
    assert awake - tensor_bytes() >= 0.95 * pool
    assert engine.stats()["kv_blocks_cached"] == 0
    engine.sleep()  # again, to no effect
    engine.wake()
    engine.wake()
    assert tensor_bytes() == pytest.approx(awake, rel=0.02)
    engine.publish(None, 1)
    after = engine.run(requests)
    check_exact(module, requests, after, context=CONTEXT)
    assert ({c.policy_version for c in before}, {c.policy_version for c in after}) == ({0}, {1})
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert [parameter.data_ptr() for parameter in module.parameters()] == where
