"""An engine over a model folder, where nothing is trained: where its weights are, their proof, what a failure leaves.

A program is one of the test's own; `hosted/test_engine.py` has one in a process.
"""

from dataclasses import replace

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost, RolloutError
from burnish.rollout import load_engine
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.hosted.weights import ROUNDING, TOKENS
from burnish.rollout.native.spec import SPEC
from burnish.rollout.replacing import ReplacingEngine

GPU = torch.device("cuda", 0)


class Program(HFEngine):
    """Takes weights in buckets and notes what happens to it."""

    own_weights = True

    @classmethod
    def from_config(cls, module, tokenizer, config, logs=None):
        made = cls(module, tokenizer)
        made.loaded, made.dtype = module, module.dtype
        made.taken, made.proof, made.is_closed = {}, None, False
        cls.made.append(made)
        return made

    def expect(self, proof):
        assert not self.taken, "before the weights"
        self.proof = proof

    def publish(self, weights, version):
        for number, bucket in enumerate(weights):
            assert len(bucket) == 1, "never all weights at once"
            self.taken |= bucket
            if number == 3 and self.fails:
                raise type(self).fails.pop()
        self.version = version

    def lost(self):
        return None

    def renewed(self):
        return self.from_config(self.loaded, self.tokenizer, None)

    def close(self):
        self.is_closed = True


@pytest.fixture
def program(monkeypatch):
    Program.made, Program.fails = [], []
    monkeypatch.setattr("burnish.rollout.engine_class", lambda name: Program)
    monkeypatch.setattr("burnish.rollout.engine_spec", lambda *choice: replace(SPEC, own_weights=True))
    return Program


@pytest.fixture
def loaded(tiny_folder, tokenizer):
    def load(**keys):
        return load_engine(ModelConfig(path=str(tiny_folder), **keys), tokenizer, RolloutConfig(), GPU, "float32")

    return load


def test_a_program_is_given_weights_from_the_cpu_and_a_proof(program, loaded, teacher):
    """All of the GPU, which it was to be loaded for, is the program's."""
    engine = loaded(attn_implementation="flash_attention_2")
    assert isinstance(engine, ReplacingEngine)
    made = engine.engine
    assert made.loaded.device.type == "cpu" and made.taken.keys() == dict(made.loaded.named_parameters()).keys()
    proof, ids = made.proof, made.proof.token_ids
    expected = teacher(made.loaded, ids).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert len(ids) == TOKENS and proof.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
    assert (proof.version, proof.rounding) == (0, ROUNDING[torch.float32][0])


def test_a_program_that_is_lost_on_the_way_is_replaced(program, loaded):
    program.fails = [EngineLost("gone")]
    engine = loaded()
    assert engine.engine is program.made[1] and len(program.made[1].taken) > 4
    assert engine.stats()["replica_restarts"] == 1


@pytest.mark.parametrize("error", [RolloutError("no room"), KeyboardInterrupt()])
def test_a_program_that_does_not_get_its_weights_is_ended(program, loaded, error):
    program.fails = [error]
    with pytest.raises(type(error)):
        loaded()
    assert [made.is_closed for made in program.made] == [True]
