"""The proof that a program generates with the actor's weights; and an engine that is lost while it takes them over."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import EngineLost, RolloutError
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.hosted.weights import ROUNDING, rounding
from burnish.rollout.replacing import ReplacingEngine
from burnish.workers import replica as replica_module
from burnish.workers.replica import HEAT, TOP_K, Replica


@pytest.mark.parametrize(
    ("trained", "generates", "counts"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16, torch.bfloat16),
    ],
)
def test_of_two_types_the_coarser_one_says_what_is_rounding(trained, generates, counts):
    least, share = ROUNDING[counts]
    assert rounding(torch.tensor([-1.0, -1.0]), trained, generates) == least
    assert rounding(torch.tensor([-5.0, -25.0]), trained, generates) == pytest.approx(max(least, share * 10))


def right(rows):
    return rows.div(HEAT).log_softmax(-1)


def truncated(rows):
    scaled = right(rows)
    return scaled - scaled.topk(TOP_K).values.logsumexp(-1, keepdim=True)


@pytest.mark.parametrize(
    "given", [right, lambda rows: rows.log_softmax(-1), truncated, lambda rows: rows * torch.nan],
    ids=["right", "unscaled", "truncated", "no_number"],
)  # fmt: skip
def test_sampled_tokens_must_have_the_log_probs_that_training_gives_them(tmp_path, given):
    folder = write_tiny_model(tmp_path / "tiny", context=64)
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    class Engine(HFEngine):
        def run(self, requests):
            (completion,) = super().run(requests)
            ids = [*requests[0][0], *completion.token_ids]
            with torch.no_grad():
                rows = given(module(input_ids=torch.tensor([ids])).logits[0, :-1])
            return [replace(completion, log_probs=[row[i].item() for row, i in zip(rows, ids[1:], strict=True)])]

    replica = object.__new__(Replica)
    replica.actor = Trainable(module, OptimConfig(), total_steps=1)
    replica.engine = Engine(module, AutoTokenizer.from_pretrained(folder))
    replica.is_here, replica.canary_tokens, replica.dtypes = True, 16, (torch.float32,)
    said = r"samples \(temperature 1\.5, top_k 2\) other log-probs than the actor"
    with nullcontext() if given is right else pytest.raises(RolloutError, match=said):
        replica._compare_samples()


class Mortal(HFEngine):
    """Lost with the second bucket of its first publish."""

    deaths = 0

    def publish(self, weights, version):
        if weights is None or type(self).deaths:
            super().publish(weights, version)
            return
        for number, _ in enumerate(weights):
            if number:
                break
        type(self).deaths += 1
        self._is_whole = False
        raise EngineLost("gone in a publish")


@pytest.fixture
def replica(tmp_path, monkeypatch):
    """One with a copy of its own, whose weights are others than the actor's until they are published."""
    folder = write_tiny_model(tmp_path / "tiny", context=64)
    actor, copy = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.zero_()
    whole = replica_module.whole_buckets
    monkeypatch.setattr(replica_module, "whole_buckets", lambda *args, **how: whole(*args, **how, size=2**12))
    monkeypatch.setattr(Mortal, "deaths", 0)
    made = object.__new__(Replica)
    made.actor, made.module, made.dtype = Trainable(actor, OptimConfig(), total_steps=1), copy, torch.float32
    made.shares = made.is_program = False
    made.engine = ReplacingEngine(Mortal(copy, AutoTokenizer.from_pretrained(folder)))
    made._samples_are_right = True
    yield made
    made.close()


def test_it_is_published_to_again_from_the_first_bucket(replica):
    replica.publish(3)
    assert Mortal.deaths == 1 and replica.engine.stats()["replica_restarts"] == 1
    trained = dict(replica.actor.module.named_parameters())
    assert all(torch.equal(parameter, trained[name]) for name, parameter in replica.module.named_parameters())
    (completion,) = replica.engine.run([([5, 6], Sampling(max_tokens=2))])
    assert completion.policy_version == 3


def test_of_several_processes_one_does_not_begin_again_alone(replica, monkeypatch):
    """The others would wait for it, or go on without it."""
    whole = replica_module.whole_buckets
    monkeypatch.setattr(
        replica_module, "whole_buckets", lambda masters, slices, mesh, **how: whole(masters, slices, None, **how)
    )
    replica.actor.mesh = object()
    with pytest.raises(RolloutError, match="was lost while it loaded the weights of version 3.*publish again"):
        replica.publish(3)
    with pytest.raises(RolloutError, match="the last publish failed"):
        replica.engine.run([([5, 6], Sampling(max_tokens=2))])
