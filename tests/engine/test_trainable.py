"""Updates do not depend on the cut, bad steps are not applied, and a saved run resumes bit for bit."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.algorithms.tally import part_of_sum
from burnish.config.optim import OptimConfig
from burnish.engine.batching import MicroBatch
from burnish.engine.packing import pack
from burnish.engine.trainable import Trainable, infer
from burnish.errors import CheckpointError
from burnish.models.tiny import write_tiny_model
from tests.engine.updating import update

CUTS = [
    MicroBatch(),
    MicroBatch(max_sequences=1),
    MicroBatch(max_sequences=4),
    MicroBatch(max_tokens=12),
    MicroBatch(max_tokens=1),
]


@pytest.fixture
def make_trainable(model_folder):
    def make(folder=model_folder, dtype=torch.float32, grad_clip=1.0, **changes):
        settings = OptimConfig(**({"lr": 1e-2, "lr_scheduler_type": "cosine", "lr_warmup_steps": 2} | changes))
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        return Trainable(module, settings, grad_clip=grad_clip, total_steps=6)

    return make


def nll(trainable, total):
    """Negative log-likelihood per response token of the whole mini-batch."""

    def loss_fn(rows):
        log_prob = trainable.forward.log_probs(pack(rows.batch))["log_prob"]
        loss = -(log_prob * rows.batch["response_mask"]).sum() / total
        return loss, {"tokens": part_of_sum(rows.batch["response_mask"].sum() / total)}

    return loss_fn


def step(trainable, batch, micro=CUTS[2]):
    return update(trainable, batch, nll(trainable, batch.batch["response_mask"].sum()), micro)


def weights(trainable):
    return {name: p.detach().clone() for name, p in trainable.module.named_parameters()}


@pytest.mark.parametrize("micro", CUTS[1:])
def test_the_cut_changes_no_gradient(make_trainable, batch, micro, monkeypatch):
    gradients = []
    for cut in (CUTS[0], micro):
        trainable = make_trainable(grad_clip=None)
        monkeypatch.setattr(
            trainable.optimizer,
            "step",
            lambda t=trainable: gradients.append({n: p.grad.clone() for n, p in t.masters.items()}),
        )
        metrics = step(trainable, batch, cut)
        assert metrics["tokens"] == pytest.approx(1.0)
    for name, whole in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], whole, atol=1e-6, rtol=0, msg=name)


def test_low_precision_gradients_are_summed_in_float32(make_trainable, batch):
    trainable = make_trainable(dtype=torch.bfloat16, grad_clip=None)
    masters = {name: p.detach().clone() for name, p in trainable.masters.items()}
    step(trainable, batch, MicroBatch(max_sequences=1))
    for name, parameter in trainable.module.named_parameters():
        assert parameter.dtype == torch.bfloat16 and trainable.masters[name].dtype == torch.float32
        assert parameter.equal(trainable.masters[name].bfloat16())
        assert not trainable.masters[name].equal(masters[name])


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
    loss_fn = nll(trainable, batch.batch["response_mask"].sum())
    given = update(trainable, batch, loss_fn, MicroBatch(), schedule=2)
    assert given["lr"] == trainable.learning_rate(2) and trainable.step == 7


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_bad_loss_is_not_applied(make_trainable, batch, poison):
    trainable = make_trainable()
    step(trainable, batch)
    before = weights(trainable)
    good = nll(trainable, 10)
    seen = []

    def poisoned(rows):
        seen.append(len(rows))
        loss, metrics = good(rows)
        return (loss * poison if len(seen) == 2 else loss), metrics

    metrics = update(trainable, batch, poisoned, MicroBatch(max_sequences=2))
    assert metrics["bad_step"] == 1.0
    assert all(before[name].equal(p) for name, p in weights(trainable).items())
    assert all(p.grad is None for p in trainable.module.parameters())
    assert step(trainable, batch)["bad_step"] == 0.0  # nothing of it is left behind


def test_a_bad_gradient_of_a_finite_loss_is_not_applied(make_trainable, batch):
    trainable = make_trainable()
    before = weights(trainable)
    zero = torch.zeros(())

    def loss_fn(rows):
        log_prob = trainable.forward.log_probs(pack(rows.batch))["log_prob"]
        return (log_prob.sum() * zero).abs().sqrt(), {}  # d sqrt(x) at 0 is infinite

    metrics = update(trainable, batch, loss_fn, MicroBatch())
    assert metrics["loss"] == 0.0 and metrics["bad_step"] == 1.0
    assert all(before[name].equal(p) for name, p in weights(trainable).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_bit_exact(make_trainable, batch, tmp_path, dtype):
    straight = make_trainable(dtype=dtype)
    assert straight.module.config.tie_word_embeddings
    history = [step(straight, batch) for _ in range(6)]

    first = make_trainable(dtype=dtype)
    resumed_history = [step(first, batch) for _ in range(3)]
    first.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    drawn = torch.rand(4)
    second = make_trainable(dtype=dtype)
    second.load(tmp_path)
    assert torch.rand(4).equal(drawn)
    resumed_history += [step(second, batch) for _ in range(3)]

    assert resumed_history == history
    theirs = weights(second)
    assert all(p.equal(theirs[name]) for name, p in weights(straight).items())


def test_a_checkpoint_of_another_model_is_named(make_trainable, batch, tmp_path):
    wide = make_trainable(write_tiny_model(tmp_path / "wide", hidden_size=48, heads=4))
    wide.save(tmp_path / "saved")
    trainable = make_trainable()
    before = weights(trainable)
    with pytest.raises(
        CheckpointError, match=r"another model: model\.embed_tokens\.weight is \(\d+, 48\) there, \(\d+, 32\) here"
    ):
        trainable.load(tmp_path / "saved")
    assert all(before[name].equal(p) for name, p in weights(trainable).items())

    deep = make_trainable(write_tiny_model(tmp_path / "deep", hidden_size=32, heads=4, layers=3))
    deep.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"another model: this model has no parameter model\.layers\.2\."):
        trainable.load(tmp_path / "saved")
    trainable.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"another model: it has no parameter model\.layers\.2\."):
        deep.load(tmp_path / "saved")


def test_damaged_checkpoints_are_named(make_trainable, batch, tmp_path):
    trainable = make_trainable()
    step(trainable, batch)
    with pytest.raises(CheckpointError, match=r"nothing is not a training checkpoint: engine.json is missing"):
        trainable.load(tmp_path / "nothing")

    trainable.save(tmp_path)
    optimizer = tmp_path / "optimizer.safetensors"
    whole = optimizer.read_bytes()
    optimizer.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"optimizer.safetensors is truncated or damaged"):
        trainable.load(tmp_path)
    optimizer.unlink()
    with pytest.raises(CheckpointError, match=r"incomplete: optimizer.safetensors is missing"):
        trainable.load(tmp_path)
    optimizer.write_bytes(whole)

    engine = tmp_path / "engine.json"
    engine.write_text(json.dumps({"format": 99}))
    with pytest.raises(CheckpointError, match=r"engine.json is not of a format this version reads"):
        trainable.load(tmp_path)
    engine.write_text("{")
    with pytest.raises(CheckpointError, match=r"cannot read .*engine.json"):
        trainable.load(tmp_path)
    facts = {"format": 2, "parts": ["model", "optimizer", "extra"], "step": 3, "optimizer": "Lion"}
    engine.write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=r"written with optim.optimizer=Lion, this run has AdamW"):
        trainable.load(tmp_path)


# Frozen parts

FROZEN = ("model.embed_tokens.", "model.layers.0.", "model.layers.1.self_attn.k_proj.")


@pytest.fixture
def make_frozen(model_folder):
    def make(dtype):
        module = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(not is_frozen(name))
        # Decay would shrink a parameter even without a gradient.
        return Trainable(module, OptimConfig(lr=1e-2, weight_decay=0.1), total_steps=6)

    return make


def is_frozen(name):
    return name.startswith(FROZEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_parameters_have_no_state_and_keep_their_bits(make_frozen, batch, dtype):
    trainable = make_frozen(dtype)
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
def test_training_resumes_from_a_checkpoint_of_a_partly_frozen_model(make_frozen, batch, tmp_path, dtype):
    straight = make_frozen(dtype)
    history = [step(straight, batch) for _ in range(4)]
    first = make_frozen(dtype)
    resumed = [step(first, batch) for _ in range(2)]
    first.save(tmp_path)
    second = make_frozen(dtype)
    second.load(tmp_path)
    assert resumed + [step(second, batch) for _ in range(2)] == history
    ours, theirs = weights(second), weights(straight)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    kept = weights(first)
    assert all(p.equal(kept[name]) for name, p in whole.named_parameters())  # frozen ones are in the folder too


def test_a_model_that_freezes_other_parts_is_refused(make_frozen, make_trainable, tmp_path):
    make_frozen(torch.float32).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"no parameter model\.embed_tokens\.weight"):
        make_trainable().load(tmp_path)
