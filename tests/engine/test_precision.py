"""Low-precision weights with float32 masters, in the memory that the rollout engine reads; and any cut of a batch."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable
from burnish.protocol import DataProto
from burnish.rollout.base import Sampling
from burnish.rollout.native.engine import NativeEngine
from tests.engine.updating import nll, step
from tests.rollout.native.models import build

HALVES = [torch.bfloat16, torch.float16]
CONSTANT = {"lr_scheduler_type": "constant", "lr_warmup_steps": 0, "weight_decay": 0.0}


@pytest.fixture
def make_trainable(model_folder):
    def make(dtype=torch.bfloat16, **changes):
        module = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
        optim = OptimConfig(**({"lr": 1e-2} | CONSTANT | changes))
        return Trainable(module, optim, grad_clip=None, total_steps=100)

    return make


def assert_weights_are_rounded_masters(trainable):
    for name, parameter in trainable.module.named_parameters():
        master = trainable.masters[name]
        assert master.dtype == torch.float32 and parameter.grad is None
        assert torch.equal(parameter, master.to(parameter.dtype)), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_weights_are_the_rounding_of_masters_at_all_times(make_trainable, batch, tmp_path, dtype):
    trainable, other = make_trainable(dtype, lr=1e-4), make_trainable(dtype)
    assert_weights_are_rounded_masters(trainable)
    for _ in range(3):
        step(trainable, batch)
        assert_weights_are_rounded_masters(trainable)
    assert any(not torch.equal(p, trainable.masters[n]) for n, p in trainable.parameters.items()), "masters have more"
    before = {name: master.detach().clone() for name, master in trainable.masters.items()}
    trainable.gradients = {name: torch.full_like(master, torch.nan) for name, master in trainable.masters.items()}
    assert trainable.optim_step(0.0)["bad_step"] == 1
    assert all(torch.equal(master, before[name]) for name, master in trainable.masters.items()), "it is not applied"
    assert_weights_are_rounded_masters(trainable)
    trainable.save(tmp_path)
    other.load(tmp_path)
    assert_weights_are_rounded_masters(other)
    assert all(torch.equal(master, other.masters[name]) for name, master in trainable.masters.items())


def test_steps_too_small_to_see_add_up_in_the_masters(make_trainable):
    """Below 1 bfloat16 numbers are 2^-8 apart. A step of a thirteenth of that, taken alone, rounds back to 1."""
    small, weight = 2**-8 / 13, "model.norm.weight"
    trainable = make_trainable(lr=small)
    plain = torch.nn.Parameter(trainable.parameters[weight].detach().clone())  # what an optimiser without masters has
    without_masters = torch.optim.AdamW([plain], lr=small, weight_decay=0.0)
    assert plain.eq(1).all()
    seen = []
    for _ in range(13):
        trainable.gradients = {name: torch.ones_like(master) for name, master in trainable.masters.items()}
        trainable.optim_step(0.0)  # Adam moves every weight by the learning rate
        plain.grad = torch.ones_like(plain)
        without_masters.step()
        seen.append(trainable.parameters[weight].detach()[0].item())
    assert seen == [1.0] * 6 + [1 - 2**-8] * 7, "from the step on that passes the middle"
    torch.testing.assert_close(trainable.masters[weight], torch.full((32,), 1 - 2**-8), atol=1e-6, rtol=0)
    assert plain.eq(1).all(), "without masters it never moves"


def test_gradients_of_micro_batches_are_added_up_in_float32(make_trainable, batch):
    """Each is computed in bfloat16, their sum is not rounded: to the bit the sum of those of the rows alone."""
    trainable = make_trainable()
    loss_fn = nll(trainable, batch.batch["response_mask"].sum())
    trainable.forward_backward(batch, loss_fn, MicroBatch(max_sequences=1))
    found = {name: gradient.clone() for name, gradient in trainable.gradients.items()}
    expected = {name: torch.zeros_like(gradient) for name, gradient in found.items()}
    for row in range(len(batch)):
        trainable.forward_backward(batch[row : row + 1], loss_fn, MicroBatch())
        for name, gradient in trainable.gradients.items():
            assert torch.equal(gradient, gradient.bfloat16().float())
            expected[name] += gradient
    for name, gradient in expected.items():
        assert gradient.dtype == torch.float32 and torch.equal(found[name], gradient), name
    assert any(not torch.equal(gradient, gradient.bfloat16().float()) for gradient in found.values())
    wide = make_trainable(torch.float32)
    step(wide, batch)
    assert all(wide.masters[name] is parameter for name, parameter in wide.module.named_parameters()), "their own"


ASKED = [5, 6, 7, 8]


def places(module):
    return {name: parameter.data_ptr() for name, parameter in module.named_parameters()}


def generated(engine):
    """Log-probs of what the engine generates next, and those of the module itself."""
    [completion] = engine.run([(ASKED, Sampling(temperature=0, max_tokens=5, ignore_eos=True))])
    ids = torch.tensor([ASKED + list(completion.token_ids)])
    with torch.no_grad():
        plain = engine.module.eval()(ids).logits[0, len(ASKED) - 1 : -1].float().log_softmax(-1)
    return torch.tensor(completion.log_probs), plain.gather(1, ids[0, len(ASKED) :, None])[:, 0]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "module"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
def test_the_engine_reads_what_updates_write(make_trainable, model_folder, batch, tmp_path, dtype, tolerance, fused):
    trainable = make_trainable(dtype)
    trainable.save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    engine = NativeEngine(trainable.module, tokenizer, max_num_seqs=2, max_model_len=32, blocks=12, fused=fused)
    where, first = places(trainable.module), generated(engine)
    torch.testing.assert_close(*first, atol=tolerance, rtol=0)
    for version in (1, 2):
        step(trainable, batch)
        engine.publish(None, version)
        now = generated(engine)
        torch.testing.assert_close(*now, atol=tolerance, rtol=0)
        assert not torch.allclose(now[0], first[0], atol=4 * tolerance), "it is another policy by now"
    trainable.load(tmp_path)
    engine.publish(None, 3)
    torch.testing.assert_close(generated(engine)[0], first[0], atol=1e-6, rtol=0)
    step(trainable, batch)
    assert places(trainable.module) == where


@cache
def models():
    """A policy and a critic with weights large enough that every token matters."""
    policy = build("qwen2", {})
    torch.manual_seed(0)
    critic = AutoModelForTokenClassification.from_config(policy.config)
    critic.config.num_labels = 1
    critic.score = torch.nn.Linear(policy.config.hidden_size, 1)
    ways = {"fused": ModelConfig(), "packed": ModelConfig(use_fused_kernels=False)}
    made = {}
    for way, config in ways.items():
        for name, module in (("policy", policy), ("critic", critic)):
            made[way, name] = Trainable(module, OptimConfig(), grad_clip=None, total_steps=1, model=config)
    return made


def padded(lengths):
    """A batch of (prompt, response) lengths, as the rollout leaves it, with a weight for every response token."""
    width = [max(part) for part in zip(*lengths, strict=True)]
    places = torch.arange(sum(width)) - width[0]
    prompts, responses = (torch.tensor(part)[:, None] for part in zip(*lengths, strict=True))
    mask = (places >= -prompts) & (places < responses)
    ids = torch.randint(3, 80, mask.shape, generator=torch.Generator().manual_seed(len(lengths)))
    return DataProto.from_dict(
        {"input_ids": ids * mask, "attention_mask": mask.long(), "responses": (ids * mask)[:, width[0] :],
         "weight": torch.arange(1.0, mask[:, width[0] :].numel() + 1).view(len(lengths), -1).sin()}
    )  # fmt: skip


def passed(policy, critic, batch, micro):
    """Log-probs, entropy and values of a batch, and the gradients of both models under a loss of all of them."""

    def figures(rows):
        outputs = policy.forward.log_probs(pack(rows.batch), 0.8, ("log_prob", "entropy"))
        return outputs | {"values": critic.forward.values(pack(rows.batch))}

    def weighed(*names):
        return lambda rows: (sum((figures(rows)[name] * rows.batch["weight"]).sum() for name in names), {})

    found = policy.infer(figures, batch, micro)
    for trainable, names in ((policy, ("log_prob", "entropy")), (critic, ("values",))):
        metrics = trainable.forward_backward(batch, weighed(*names), micro)
        found |= {f"{names[0]} {name}": gradient.clone() for name, gradient in trainable.gradients.items()}
        found[f"{names[0]} loss"] = torch.tensor(metrics["loss"])
    return found


CUTS = st.builds(MicroBatch, max_sequences=st.integers(1, 8)) | st.builds(MicroBatch, max_tokens=st.integers(1, 90))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=7), cut=CUTS)
@pytest.mark.parametrize("way", ["fused", "packed"])
def test_log_probs_values_and_gradients_do_not_depend_on_the_cut(way, lengths, cut):
    policy, critic = models()[way, "policy"], models()[way, "critic"]
    batch = padded([*lengths, (2, 3)])  # one response at least
    whole, parts = passed(policy, critic, batch, MicroBatch()), passed(policy, critic, batch, cut)
    assert whole.keys() == parts.keys() and len(whole) > 30
    for name, expected in whole.items():
        largest = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(parts[name], expected, atol=2e-6 * largest, rtol=1e-5, msg=name)
