"""Weights: read where they lie, proven on every publish, and a pool that is given back and taken again."""

import asyncio
import copy
import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.errors import ConfigError, RolloutError, WorkerError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hf.engine import HFEngine
from tests.rollout.native.exact import check_exact, random_prompts, random_requests, tensor_bytes
from tests.rollout.native.models import CONTEXT, GROUPED, build, family

GREEDY = [(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for prompt in random_prompts(3, seed=2)]
both_ways = pytest.mark.parametrize("fused", [True, False], ids=["fused", "module"])


def addresses(module):
    return {name: parameter.data_ptr() for name, parameter in module.named_parameters()}


def optimiser_step(module, rate=0.5):
    ids = torch.tensor([list(range(5, 40))])
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    module(ids, labels=ids).loss.backward()
    optimiser.step()
    optimiser.zero_grad()


@both_ways
def test_after_an_optimiser_step_tokens_come_from_the_new_weights(native, one_by_one, fused):
    module = family("qwen2")
    engine = native(module, fused=fused)
    before, where = engine.run(GREEDY), addresses(module)
    optimiser_step(module)
    engine.publish(None, 1)
    assert addresses(module) == where
    after = engine.run(GREEDY)
    assert [c.token_ids for c in after] == [c.token_ids for c in one_by_one(module, GREEDY)]
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert {c.policy_version for c in before} == {0} and {c.policy_version for c in after} == {1}


@pytest.mark.parametrize(
    "name,fused", [("qwen2", True), ("qwen2", False), ("qwen2-tied", True), ("qwen3", True), ("llama-biased", True)]
)
def test_every_parameter_is_read_where_it_lies(native, name, fused):
    """One parameter after another is changed in place, and seen."""
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
    """Whatever an engine did to the layout of parameters is nobody else's business."""
    module = family("qwen2")
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    engine = native(module)
    engine.run(GREEDY)
    assert module.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    module.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    twin = copy.deepcopy(module)
    optimiser_step(twin)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    module.load_state_dict(twin.state_dict())
    engine.publish(None, 1)
    check_exact(twin, GREEDY, engine.run(GREEDY), context=CONTEXT)


def test_two_engines_on_one_module(native, module):
    requests = random_requests(8, seed=4)
    first, second = native(module), native(module, fused=False)
    expected = [c.token_ids for c in first.run(requests)]
    assert [c.token_ids for c in second.run(requests)] == expected == [c.token_ids for c in first.run(requests)]
    first.publish(None, 1)
    second.publish(None, 1)


@both_ways
@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"]
)
def test_a_parameter_that_moved_is_named(native, name, fused):
    module = family("qwen2")
    engine = native(module, fused=fused)
    engine.publish(None, 1)
    parameter = module.get_parameter(name)
    parameter.data = parameter.data.clone() * 1.5
    with pytest.raises(RolloutError, match=name.replace(".", r"\.")):
        engine.publish(None, 2)


def test_a_parameter_object_that_was_replaced_is_named(native):
    module = family("qwen2")
    engine = native(module)
    module.model.norm.weight = torch.nn.Parameter(module.model.norm.weight.detach() * 1.5)
    with pytest.raises(RolloutError, match=r"model\.norm\.weight"):
        engine.publish(None, 1)


@both_ways
@pytest.mark.parametrize("noise", [0.01, float("nan")])
def test_a_decoder_that_computes_something_else_fails_the_canary(native, module, swap_decoder, noise, fused):
    engine = native(module, fused=fused)
    engine.publish(None, 1)

    def noisy(decoder):
        def call(*args, **kwargs):
            logits = decoder(*args, **kwargs)
            return logits + noise * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)

        return call

    swap_decoder(engine, noisy)
    with pytest.raises(RolloutError, match=r"does not compute what the trained module \(\w+ForCausalLM\) does"):
        engine.publish(None, 2)


def test_a_failed_publish_does_not_take_the_new_version(native, module, swap_decoder):
    engine = native(module)
    factor = 1.1
    swap_decoder(engine, lambda decoder: lambda *args: decoder(*args) * factor)
    with pytest.raises(RolloutError):
        engine.publish(None, 5)
    assert engine.stats()["kv_blocks_used"] == 0
    factor = 1.0
    assert engine.run(GREEDY)[0].policy_version == 0
    engine.publish(None, 6)
    assert engine.run(GREEDY)[0].policy_version == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_foreign_weights_are_copied_in(native, one_by_one, dtype):
    module = family("qwen2")
    engine = native(module)
    where = addresses(module)
    engine.run(GREEDY)
    foreign = {name: tensor.to(dtype) for name, tensor in build("qwen2", GROUPED, seed=8).state_dict().items()}
    engine.publish([foreign], 3)
    assert addresses(module) == where
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, foreign[name].float()) and tensor.data_ptr() != foreign[name].data_ptr()
    completions = engine.run(GREEDY)
    assert [c.token_ids for c in completions] == [c.token_ids for c in one_by_one(module, GREEDY)]
    assert {c.policy_version for c in completions} == {3}
    check_exact(module, GREEDY, completions, context=CONTEXT)


def test_some_weights_or_the_modules_own(native):
    module = family("qwen2")
    engine = native(module)
    weight = torch.linspace(-3, 3, 32)
    engine.publish([{"model.norm.weight": weight}], 1)
    assert torch.equal(module.get_parameter("model.norm.weight"), weight)
    check_exact(module, GREEDY, engine.run(GREEDY), context=CONTEXT)
    engine.publish([module.state_dict()], 2)
    check_exact(module, GREEDY, engine.run(GREEDY), context=CONTEXT)


def test_foreign_weights_that_do_not_fit(native):
    module = family("qwen2")
    engine = native(module)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(RolloutError, match=r"'model\.other' is not part of Qwen2ForCausalLM"):
        engine.publish([{"model.other": torch.zeros(3)}], 8)
    with pytest.raises(RolloutError, match=r"model\.norm\.weight"):
        engine.publish([{"model.norm.weight": torch.zeros(3)}], 8)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_publish_that_fails_halfway_leaves_no_old_keys_and_values(native):
    module = family("qwen2")
    engine = native(module)
    prompt = random_prompts(1, seed=6, shortest=30, longest=30)[0]
    request = (prompt, Sampling(max_tokens=8, ignore_eos=True))
    engine.run([request])
    embeddings = module.get_input_embeddings().weight.detach().flip(0).clone()
    with pytest.raises(RolloutError):
        engine.publish([{"model.embed_tokens.weight": embeddings}, {"model.other": torch.zeros(3)}], 1)
    engine.publish([module.state_dict()], 2)
    check_exact(module, [request], engine.run([request]), context=CONTEXT)


# Buckets


def test_a_bucket_is_made_when_the_one_before_is_taken_over_and_let_go(native):
    module, foreign = family("qwen2"), build("qwen2", GROUPED, seed=8)
    engine, made = native(module), []

    def buckets():
        for name, tensor in foreign.state_dict().items():
            for before, reference in made:
                assert reference() is None, f"{before} is still held"
                assert torch.equal(module.state_dict()[before], foreign.state_dict()[before])
            fresh = tensor.clone()
            made.append((name, weakref.ref(fresh)))
            bucket = {name: fresh}
            del fresh
            yield bucket
            del bucket

    engine.publish(buckets(), 3)
    assert len(made) == len(module.state_dict())
    completions = engine.run(GREEDY)
    check_exact(foreign, GREEDY, completions, context=CONTEXT)
    assert {c.policy_version for c in completions} == {3}


def test_after_buckets_that_ended_midway_nothing_is_generated_until_a_publish_succeeds(native):
    module, foreign = family("qwen2"), build("qwen2", GROUPED, seed=8).state_dict()
    engine = native(module)
    engine.publish(None, 1)

    def broken():
        yield {"model.norm.weight": foreign["model.norm.weight"]}
        raise WorkerError("rank 3 is gone")

    with pytest.raises(WorkerError, match="rank 3 is gone"):
        engine.publish(broken(), 2)
    assert engine.version == 1
    for _ in range(2):
        with pytest.raises(RolloutError, match="request run/0: the last publish failed.*publish again"):
            engine.run(GREEDY)
    with pytest.raises(RolloutError, match=r"model\.other"):
        engine.publish(iter([{"model.other": torch.zeros(3)}]), 2)
    with pytest.raises(RolloutError, match="no weight was published"):
        engine.publish(iter([]), 2)
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run(GREEDY)
    engine.publish(iter([foreign]), 2)
    assert {c.policy_version for c in engine.run(GREEDY)} == {2}
    check_exact(module, GREEDY, engine.run(GREEDY), context=CONTEXT)


def test_weights_that_arrived_but_generate_something_else_are_not_used(native, swap_decoder):
    module = family("qwen2")
    engine = native(module)
    factor = 1.1
    swap_decoder(engine, lambda decoder: lambda *args: decoder(*args) * factor)
    with pytest.raises(RolloutError, match="does not compute"):
        engine.publish([module.state_dict()], 1)
    factor = 1.0
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run(GREEDY)
    engine.publish([module.state_dict()], 2)
    engine.run(GREEDY)


def test_published_weights_that_are_not_numbers_are_called_so(native):
    engine = native(family("qwen2"))
    with pytest.raises(RolloutError, match="the trained weights give logits that are NaN"):
        engine.publish([{"model.norm.weight": torch.full((32,), float("nan"))}], 1)


def test_sleep_frees_the_pool_and_wake_takes_it_again(native, module, generate_all):
    requests = random_requests(8, seed=5)
    engine = native(module, blocks=400)
    expected = engine.run(requests)
    awake = tensor_bytes()
    engine.sleep()
    layers, heads, head_size = 2, 2, 8
    pool = 400 * 8 * layers * 2 * heads * head_size * 4
    assert awake - tensor_bytes() >= 0.95 * pool
    assert engine.stats()["kv_blocks_cached"] == 0
    with pytest.raises(RolloutError, match=r"wake\(\)"):
        generate_all(engine, requests)
    engine.sleep()  # again, to no effect
    engine.wake()
    engine.wake()
    assert tensor_bytes() == pytest.approx(awake, rel=0.02)
    assert [c.token_ids for c in engine.run(requests)] == [c.token_ids for c in expected]


def test_weights_that_changed_while_the_engine_slept(native):
    module = family("qwen2")
    engine = native(module)
    engine.run(GREEDY)
    engine.sleep()
    optimiser_step(module)
    with pytest.raises(RolloutError, match=r"wake\(\)"):
        engine.publish(None, 1)
    engine.wake()
    engine.publish(None, 1)
    completions = engine.run(GREEDY)
    check_exact(module, GREEDY, completions, context=CONTEXT)
    assert {c.policy_version for c in completions} == {1}


def test_sleep_is_refused_while_requests_run(native, module):
    engine = native(module)

    async def main():
        task = asyncio.create_task(
            engine.generate(Request([5], Sampling(max_tokens=20, ignore_eos=True), request_id="a"))
        )
        while not engine.stats()["running"]:
            await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="(?i)running"):
            engine.sleep()
        return await task

    assert len(asyncio.run(main()).token_ids) == 20


def test_engines_by_name(module, tokenizer):
    from burnish.config.rollout import RolloutConfig
    from burnish.rollout import make_engine
    from burnish.rollout.native.engine import NativeEngine

    config = RolloutConfig(max_num_seqs=3, max_model_len=40)
    engine = make_engine("native", module, tokenizer, config)
    assert (type(engine), engine.max_num_seqs, engine.context) == (NativeEngine, 3, 40)
    other = HFEngine(module, tokenizer, max_model_len=40)
    assert [c.token_ids for c in engine.run(GREEDY)] == [
        asyncio.run(other.generate(Request(prompt, sampling, request_id="a"))).token_ids for prompt, sampling in GREEDY
    ]
    with pytest.raises(ConfigError, match=r"max_model_len=100: the model's context is 96"):
        make_engine("native", module, tokenizer, RolloutConfig(max_model_len=100))
    with pytest.raises(ConfigError, match=r"rollout\.dtype=bfloat16: .* float32"):
        make_engine("native", module, tokenizer, RolloutConfig(dtype="bfloat16"))
