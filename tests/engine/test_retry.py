"""Passes that run out of memory: made again in half the size, with the same result; once; never in a mesh."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.retry import OomRetries
from burnish.engine.trainable import Trainable
from tests.engine.updating import nll, step, uneven_rows


@pytest.fixture
def trainable(tiny_model):
    OomRetries.take()
    return Trainable(AutoModelForCausalLM.from_pretrained(tiny_model), OptimConfig(lr=1e-2), total_steps=6)


def room_for(trainable, rows, monkeypatch):
    """The device has memory for passes of so many rows."""
    sizes, whole = [], trainable.forward.log_probs

    def log_probs(packed, *args):
        sizes.append(len(packed.sequences.starts) - 1)
        if sizes[-1] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(packed, *args)

    monkeypatch.setattr(trainable.forward, "log_probs", log_probs)
    return sizes


@pytest.mark.parametrize("micro", [MicroBatch(), MicroBatch(max_sequences=8), MicroBatch(max_tokens=10_000)])
def test_update_and_pass_in_smaller_passes_give_the_same(trainable, tiny_model, monkeypatch, caplog, micro):
    batch = uneven_rows(8)
    plain = Trainable(AutoModelForCausalLM.from_pretrained(tiny_model), OptimConfig(lr=1e-2), total_steps=6)
    expected = step(plain, batch, micro.halved(batch.batch["attention_mask"].sum(-1).tolist()))
    room_for(trainable, 5, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert step(trainable, batch, micro) == expected, "as if it had been cut so from the start"
    assert "out of memory in passes of" in caplog.text and OomRetries.take() == 1
    for name, parameter in trainable.parameters.items():
        assert torch.equal(parameter, plain.parameters[name]), "nothing is left of the first attempt"

    def log_probs(rows):
        return trainable.forward.log_probs(pack(rows.batch))

    assert trainable.infer(log_probs, batch, micro)["log_prob"].shape[0] == 8
    assert OomRetries.take() == 1 and OomRetries.take() == 0


@pytest.mark.parametrize(("rows", "micro", "tries"), [(1, MicroBatch(), 2), (0, MicroBatch(max_sequences=1), 1)])
def test_it_is_tried_once_and_not_where_passes_have_one_sequence(trainable, monkeypatch, rows, micro, tries):
    sizes, batch = room_for(trainable, rows, monkeypatch), uneven_rows(8)
    with pytest.raises(torch.OutOfMemoryError):
        trainable.forward_backward(batch, nll(trainable, 1), micro)
    assert len(sizes) == tries
