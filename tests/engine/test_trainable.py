"""Updates do not depend on the cut, bad steps are not applied, and a saved run resumes bit for bit."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable, infer
from burnish.errors import CheckpointError
from burnish.models.tiny import write_tiny_model
from tests.engine.updating import nll, step, update

CUTS = [MicroBatch(), *(MicroBatch(max_sequences=n) for n in (1, 4)), *(MicroBatch(max_tokens=n) for n in (12, 1))]


@pytest.fixture
def make_trainable(model_folder):
    def make(folder=model_folder, dtype=torch.float32, frozen=(), **changes):
        settings = OptimConfig(**({"lr": 1e-2, "lr_scheduler_type": "cosine", "lr_warmup_steps": 2} | changes))
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        return Trainable(module, settings, total_steps=6)

    return make


def weights(trainable):
    return {name: p.detach().clone() for name, p in trainable.module.named_parameters()}


@pytest.mark.parametrize("micro", CUTS)
def test_infer_restores_the_order(make_trainable, batch, micro):
    trainable = make_trainable()
    result = trainable.infer(lambda rows: trainable.forward.log_probs(pack(rows.batch)), batch, micro)["log_prob"]
    with torch.no_grad():
        expected = trainable.forward.log_probs(pack(batch.batch))["log_prob"]
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)
    assert not result.requires_grad and not trainable.module.training
    alone = infer(trainable.module, lambda rows: {"n": rows.batch["attention_mask"].sum(-1)}, batch, micro)
    assert alone["n"].tolist() == batch.batch["attention_mask"].sum(-1).tolist(), "it needs no optimiser"


@pytest.mark.parametrize("micro", CUTS)
@pytest.mark.parametrize("responses", ["theirs", "empty"])
def test_rows_without_policy_tokens_change_nothing(make_trainable, batch, make_batch, sequences, micro, responses):
    """Such rows pad a batch to a multiple of the processes, or end before their first token."""
    copies = make_batch([*sequences, *((p, r if responses == "theirs" else []) for p, r in sequences[:3])])
    copies.batch["response_mask"][-3:] = 0
    plain, padded = make_trainable(), make_trainable()
    one, other = step(plain, batch, micro), step(padded, copies, micro)
    assert other == pytest.approx(one, rel=1e-5)
    for name, parameter in padded.module.named_parameters():
        torch.testing.assert_close(parameter, plain.parameters[name], atol=1e-5, rtol=0, msg=name)

    def infer_log_probs(rows):
        return plain.infer(lambda part: plain.forward.log_probs(pack(part.batch)), rows, micro)["log_prob"]

    torch.testing.assert_close(infer_log_probs(copies)[:-3], infer_log_probs(batch), atol=1e-6, rtol=0)


def test_a_batch_without_policy_tokens_has_no_gradient(make_trainable, make_batch):
    trainable = make_trainable(weight_decay=0.0)
    before = weights(trainable)
    batch = make_batch([([5, 6], [7]), ([8], [])])
    batch.batch["response_mask"][:] = 0
    for micro in CUTS:
        metrics = update(trainable, batch, nll(trainable, 1), micro)
        assert (metrics["loss"], metrics["grad_norm"], metrics["bad_step"]) == (0.0, 0.0, 0.0)
    assert all(before[name].equal(p) for name, p in weights(trainable).items())


def test_updates_learn_and_follow_the_schedule(make_trainable, batch):
    trainable = make_trainable()
    history = [step(trainable, batch) for _ in range(6)]
    assert history[-1]["loss"] < history[0]["loss"] - 0.5
    assert [round(m["lr"], 6) for m in history[:3]] == [0.003333, 0.006667, 0.01]
    assert history[-1]["lr"] == pytest.approx(0.0, abs=1e-9)
    assert all(m["bad_step"] == 0 and m["grad_norm"] > 0 for m in history) and trainable.step == 6
    assert all(m["tokens"] == pytest.approx(1.0) for m in history)
    loss_fn = nll(trainable, batch.batch["response_mask"].sum())
    given = update(trainable, batch, loss_fn, MicroBatch(), schedule=2)
    assert given["lr"] == trainable.learning_rate(2) and trainable.step == 7


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), None], ids=["nan", "inf", "gradient alone"])
def test_a_bad_loss_or_gradient_is_not_applied(make_trainable, batch, poison):
    trainable = make_trainable()
    step(trainable, batch)
    before, good, seen = weights(trainable), nll(trainable, 10), []

    def poisoned(rows):
        seen.append(len(rows))
        loss, metrics = good(rows)
        if poison is None:
            return (loss * 0).abs().sqrt(), {}  # d sqrt(x) at 0 is infinite
        return (loss * poison if len(seen) == 2 else loss), metrics

    metrics = update(trainable, batch, poisoned, MicroBatch(max_sequences=2))
    assert metrics["bad_step"] == 1.0 and (poison is not None or metrics["loss"] == 0.0)
    assert all(before[name].equal(p) for name, p in weights(trainable).items())
    assert all(p.grad is None for p in trainable.module.parameters())
    assert step(trainable, batch)["bad_step"] == 0.0  # nothing of it is left behind


FROZEN = ("model.embed_tokens.", "model.layers.0.", "model.layers.1.self_attn.k_proj.")


@pytest.mark.parametrize("frozen", [(), FROZEN], ids=["all trained", "partly frozen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_bit_exact_and_frozen_parameters_keep_their_bits(make_trainable, batch, tmp_path, dtype, frozen):
    settings = {"dtype": dtype, "frozen": frozen, "weight_decay": 0.1}  # which needs no gradient to shrink
    straight = make_trainable(**settings)
    assert straight.module.config.tie_word_embeddings
    before = weights(straight)
    history = [step(straight, batch) for _ in range(6)]
    assert all(metrics["grad_norm"] > 0 and not metrics["bad_step"] for metrics in history)
    for name, parameter in straight.module.named_parameters():
        is_frozen = name.startswith(frozen)
        assert parameter.equal(before[name]) == is_frozen and parameter.requires_grad != is_frozen, name
        assert parameter.grad is None, name
    trained = {name for name in before if not name.startswith(frozen)}
    assert set(straight.masters) == trained and len(straight.optimizer.state) == len(trained)
    assert not frozen or len(before) - len(trained) > 5

    first = make_trainable(**settings)
    resumed_history = [step(first, batch) for _ in range(3)]
    first.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    drawn = torch.rand(4)
    second = make_trainable(**settings)
    second.load(tmp_path)
    assert torch.rand(4).equal(drawn)
    resumed_history += [step(second, batch) for _ in range(3)]

    assert resumed_history == history
    theirs, saved = weights(second), weights(first)
    assert all(p.equal(theirs[name]) for name, p in weights(straight).items())
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)  # frozen ones are in the folder too
    assert all(p.equal(saved[name]) for name, p in whole.named_parameters())


def test_a_checkpoint_of_another_model_is_named(make_trainable, batch, tmp_path):
    wide = make_trainable(write_tiny_model(tmp_path / "wide", hidden_size=48, heads=4))
    wide.save(tmp_path / "saved")
    trainable = make_trainable()
    before = weights(trainable)
    differs = r"another model: model\.embed_tokens\.weight is \(\d+, 48\) there, \(\d+, 32\) here"
    with pytest.raises(CheckpointError, match=differs):
        trainable.load(tmp_path / "saved")
    assert all(before[name].equal(p) for name, p in weights(trainable).items())

    deep = make_trainable(write_tiny_model(tmp_path / "deep", hidden_size=32, heads=4, layers=3))
    deep.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"another model: this model has no parameter model\.layers\.2\."):
        trainable.load(tmp_path / "saved")
    trainable.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"another model: it has no parameter model\.layers\.2\."):
        deep.load(tmp_path / "saved")
    make_trainable(frozen=FROZEN).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"no parameter model\.embed_tokens\.weight"):
        trainable.load(tmp_path / "saved")
