"""Parameters that were frozen (by a module of `external_lib`, or a worker of the user's) are never touched."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from tests.engine.updating import update

FROZEN = ("model.embed_tokens.", "model.layers.0.", "model.layers.1.self_attn.k_proj.")


def is_frozen(name):
    return name.startswith(FROZEN)


@pytest.fixture
def make_trainable(model_folder):
    def make(dtype=torch.float32, freeze=is_frozen):
        module = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not freeze(name))
        # Decay would shrink a parameter even without a gradient.
        return Trainable(module, OptimConfig(lr=1e-2, weight_decay=0.1), total_steps=6)

    return make


def step(trainable, batch):
    total = batch.batch["response_mask"].sum()

    def loss_fn(rows):
        log_prob = trainable.forward.log_probs(pack(rows.batch))["log_prob"]
        return -(log_prob * rows.batch["response_mask"]).sum() / total, {}

    return update(trainable, batch, loss_fn, MicroBatch(max_tokens=12))


def weights(trainable):
    return {name: p.detach().clone() for name, p in trainable.module.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_parameters_have_no_state_and_keep_their_bits(make_trainable, batch, dtype):
    trainable = make_trainable(dtype)
    before = weights(trainable)
    assert sum(map(is_frozen, before)) > 5
    for _ in range(3):
        metrics = step(trainable, batch)
        assert metrics["grad_norm"] > 0 and not metrics["bad_step"]
    for name, parameter in trainable.module.named_parameters():
        assert parameter.equal(before[name]) == is_frozen(name), name
        assert parameter.grad is None and parameter.requires_grad != is_frozen(name), name
    trained = {name for name in before if not is_frozen(name)}
    assert set(trainable.masters) == trained and len(trainable.optimizer.state) == len(trained)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_from_a_checkpoint_of_a_partly_frozen_model(make_trainable, batch, tmp_path, dtype):
    straight = make_trainable(dtype)
    history = [step(straight, batch) for _ in range(4)]
    first = make_trainable(dtype)
    resumed = [step(first, batch) for _ in range(2)]
    first.save(tmp_path)
    second = make_trainable(dtype)
    second.load(tmp_path)
    assert resumed + [step(second, batch) for _ in range(2)] == history
    ours, theirs = weights(second), weights(straight)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    kept = weights(first)
    assert all(p.equal(kept[name]) for name, p in whole.named_parameters())  # frozen ones are in the folder too


def test_a_model_that_freezes_other_parts_is_told(make_trainable, batch, tmp_path):
    trainable = make_trainable()
    trainable.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"no parameter model\.embed_tokens\.weight"):
        make_trainable(freeze=lambda name: False).load(tmp_path)
