"""An engine that is lost in the middle of taking over weights: in one process the next one gets all of them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.optim import OptimConfig
from burnish.engine.trainable import Trainable
from burnish.errors import EngineLost, RolloutError
from burnish.models.tiny import write_tiny_model
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.replacing import ReplacingEngine
from burnish.workers import replica as replica_module
from burnish.workers.replica import Replica


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
