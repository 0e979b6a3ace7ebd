"""`burnish sft` from its command line: what is learnt, what a step's loss is, what a checkpoint holds."""

import json
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import SFTConfig
from burnish.data.chat import ChatRenderer
from burnish.data.examples import Batches
from burnish.engine.forward import Forward
from burnish.errors import CheckpointError
from burnish.trainer.sft import NextTokens
from burnish.trainer.sft_trainer import main
from burnish.trainer.supervised import tokens_per_pass
from tests.trainer.conftest import CONVERSATIONS


@pytest.fixture
def sft(supervised):
    return partial(supervised, main)


def hand_loss(model_folder, conversations):
    """Mean over assistant tokens, each conversation alone through transformers."""
    tokenizer, model = AutoTokenizer.from_pretrained(model_folder), AutoModelForCausalLM.from_pretrained(model_folder)
    renderer = ChatRenderer(tokenizer)
    total, count = 0.0, 0
    for conversation in conversations:
        ids, mask = renderer.conversation(conversation)
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        total -= sum(log_p[t - 1, ids[t]].item() for t in range(1, len(ids)) if mask[t])
        count += sum(mask)
    return total / count


def test_it_learns_and_leaves_a_model_that_transformers_loads(sft, world):
    folder, metrics = sft(f"data.val_files={world / 'val.parquet'}", "trainer.total_training_steps=12")
    assert metrics[-1]["train/loss"] < metrics[0]["train/loss"] - 1
    assert {"train/lr", "train/grad_norm", "val/loss"} <= metrics[-1].keys() and "val/loss" not in metrics[0]
    last = folder / "global_step_12"
    assert metrics[-1]["val/loss"] == pytest.approx(hand_loss(last, CONVERSATIONS[:3]), abs=1e-5)
    assert AutoTokenizer.from_pretrained(last)("1+1")["input_ids"]


def test_loss_is_the_mean_over_assistant_tokens_of_the_batch(sft, world):
    _, metrics = sft("data.train_batch_size=7", "trainer.total_training_steps=1")
    assert metrics[0]["train/loss"] == pytest.approx(hand_loss(world / "model", CONVERSATIONS), abs=1e-5)


@pytest.mark.parametrize(
    "layout",
    [
        ("data.packing=false",),
        ("data.packing=false", "data.micro_batch_size_per_gpu=1"),
        ("data.packing=true", "data.micro_batch_size_per_gpu=1", "data.max_length=90"),
    ],
)
def test_neither_packing_nor_micro_batches_change_the_run(sft, layout):
    steps = ("data.train_batch_size=5", "trainer.total_training_steps=3", "optim.lr=0.001")
    _, whole = sft(*steps, "data.micro_batch_size_per_gpu=64", out="whole")
    _, cut = sft(*steps, *layout, out="cut")
    for one, other in zip(whole, cut, strict=True):
        assert other["train/loss"] == pytest.approx(one["train/loss"], abs=1e-5)
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("packing", [True, False])
def test_passes_are_filled_by_tokens_or_hold_a_number_of_examples(sft, monkeypatch, packing):
    passes = []

    plain = Forward.log_probs

    def watched(forward, packed):
        passes.append(packed.sequences.lengths)
        return plain(forward, packed)

    monkeypatch.setattr(Forward, "log_probs", watched)
    sizes = ("data.train_batch_size=7", "trainer.total_training_steps=1", "data.micro_batch_size_per_gpu=2")
    sft(*sizes, f"data.packing={packing}", "data.max_length=128")
    rows = [len(lengths) for lengths in passes]
    assert sum(rows) == 7
    if packing:
        assert all(sum(lengths) <= 2 * 128 for lengths in passes) and max(rows) > 2
    else:
        assert rows == [2, 2, 2, 1]


@pytest.mark.parametrize("packing", [True, False])
def test_a_pass_has_no_more_tokens_than_its_examples(world, packing):
    config = SFTConfig()
    config.data.packing, config.data.max_length = packing, 128
    objective = NextTokens(config, AutoTokenizer.from_pretrained(world / "model"))
    batches = Batches(objective.dataset([str(world / "train.parquet")], -1), 3, seed=0, shuffle=True)
    longest = max(len(batches.dataset[i]) for i in range(len(batches.dataset)))
    config.data.micro_batch_size_per_gpu = 1
    assert tokens_per_pass(objective, batches) == (128 if packing else longest) < 3 * longest
    config.data.micro_batch_size_per_gpu = 200
    assert tokens_per_pass(objective, batches) == 3 * longest


def test_a_checkpoint_from_before_keys_were_kept_is_resumed(sft):
    def make_old(step, **facts):
        path = folder / f"global_step_{step}" / "trainer.json"
        old = {"data.train_batch_size": 3, "data.seed": 1, "data.shuffle": True, "number of training examples": 7}
        path.write_text(json.dumps(old | {"bad_steps": 0} | facts).ljust(path.stat().st_size))

    folder, _ = sft("trainer.total_training_steps=1")
    make_old(1)
    _, metrics = sft("trainer.total_training_steps=2")
    assert [step["training/global_step"] for step in metrics] == [1, 2]
    make_old(2, **{"data.seed": 2})
    with pytest.raises(CheckpointError, match=r"written with data.seed=2, this run has 1"):
        sft("trainer.total_training_steps=3")
