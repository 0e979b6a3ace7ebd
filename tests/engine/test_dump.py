"""Dumps of bad updates: all that comes back, how many there are, and a disk or a folder that is not as it should be."""

import logging
import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import PPOConfig
from burnish.config.optim import OptimConfig
from burnish.engine import dump as dumps
from burnish.engine.dump import KEPT, BadSteps, Update, dump_folder, read_dump, versions
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError
from tests.models.helpers import edit_json

METRICS = {"loss": float("nan"), "grad_norm": float("inf"), "actor/pg_loss": 0.1, "lr": 1e-6, "bad_step": 1.0}


@pytest.fixture
def trainable(causal_lm):
    return Trainable(causal_lm, OptimConfig(), total_steps=10)


@pytest.fixture
def write(tmp_path, trainable, model_folder, batch):
    """Write a dump of one run and give its folder, whether it is there or not."""
    config = PPOConfig()
    config.actor_rollout_ref.actor.clip_ratio = 0.15
    batch.non_tensor_batch["uid"] = torch.arange(len(batch)).numpy() // 2
    steps, tokenizer = BadSteps(tmp_path, "ppo", config), AutoTokenizer.from_pretrained(model_folder)

    def run(step=1, number=0, role="actor"):
        steps.write(Update(role, step, number, step - 1, METRICS), batch, trainable, tokenizer)
        return dump_folder(tmp_path, step, role, number)

    return run


def test_all_of_an_update_comes_back(write, batch, trainable):
    batch.batch["advantages"] = torch.randn(len(batch), 6)
    batch.batch["advantages"][1, 2] = float("nan")
    batch.batch["same_memory"] = batch.batch["advantages"][:, :3]
    batch.non_tensor_batch["raw_prompt"] = [[{"role": "user", "content": "é"}]] * len(batch)
    batch.non_tensor_batch["thing"] = [object()] * len(batch)
    batch = type(batch)(batch.batch, batch.non_tensor_batch, {"temperature": 0.7})
    with torch.no_grad():
        next(trainable.module.parameters()).view(-1)[0] = float("inf")
    folder = write(step=3, number=1)
    assert folder.name == "step_3_actor_1" and folder.parent.name == "bad_steps"
    found = read_dump(folder)
    assert (found.command, found.versions) == ("ppo", versions())
    update = found.update
    assert (update.role, update.step, update.number, update.schedule) == ("actor", 3, 1, 2)
    assert {name: repr(value) for name, value in update.metrics.items()} == {n: repr(v) for n, v in METRICS.items()}
    assert found.config["actor_rollout_ref.actor.clip_ratio"] == 0.15 and found.config["trainer.seed"] == 1
    assert set(found.batch.batch.keys()) == set(batch.batch.keys())
    for name, column in batch.batch.items():
        back = found.batch.batch[name]
        assert back.dtype == column.dtype and torch.equal(back.nan_to_num(7), column.nan_to_num(7)), name
    assert found.batch.non_tensor_batch["uid"].tolist() == [0, 0, 1, 1, 2, 2]
    assert found.batch.non_tensor_batch["raw_prompt"][0] == [{"role": "user", "content": "é"}]
    assert "thing" not in found.batch.non_tensor_batch, "what has no JSON form is left out"
    weights = AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    assert all(torch.equal(weights[name], p) for name, p in trainable.module.state_dict().items())
    assert AutoTokenizer.from_pretrained(folder / "model").vocab_size
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".pt", ".bin", ".pth")]


def test_only_the_first_of_a_run_are_dumped_with_a_warning(write, caplog):
    with caplog.at_level(logging.WARNING):
        there = [write(step) for step in range(1, KEPT + 1)]
        assert all(folder.is_dir() for folder in there) and not caplog.text
        assert not write(KEPT + 1).exists() and not write(KEPT + 1, role="critic").exists()
    assert f"step_{KEPT + 1}_actor_0 is not dumped: the run has {KEPT} dumps already" in caplog.text
    shutil.rmtree(there[0] / "model")
    assert (write(1) / "model").is_dir(), "a run that comes to the same update again writes it again"


@pytest.mark.parametrize("failing", ["save_file", "rename"])
def test_a_full_disk_is_reported_and_leaves_nothing_behind(write, monkeypatch, caplog, tmp_path, failing):
    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((dumps, "save_file", full) if failing == "save_file" else ("pathlib.Path.rename", full)))
    with caplog.at_level(logging.WARNING):
        folder = write()
    assert f"{folder} cannot be dumped for replay: No space left on device" in caplog.text
    assert not list((tmp_path / "bad_steps").iterdir())
    caplog.clear()
    (tmp_path / "bad_steps").rmdir()
    (tmp_path / "bad_steps").write_text("a file")  # no folder can be made there
    write()
    assert "cannot be dumped for replay: " in caplog.text


def test_what_is_not_a_dump_is_refused_with_those_there_are(write, tmp_path):
    folder = write()
    for place in (tmp_path, tmp_path / "bad_steps"):
        with pytest.raises(CheckpointError, match=f"no dump at {place}: .*there are {folder}"):
            read_dump(place)
    with pytest.raises(CheckpointError, match=r"no dump at .*nowhere: it has no update.json. Name a folder bad_steps/"):
        read_dump(tmp_path / "nowhere")


def write_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def facts(**changes):
    return lambda folder: edit_json(folder / "update.json", **changes)


WRONG = [("config", []), ("versions", None), ("step", "x"), ("number", True), ("schedule", 1.5), ("role", ["actor"]),
         ("command", None), ("metrics", [1])]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write_text("update.json", '{"format": 1, '), "update.json: not readable as JSON"),
        (write_text("update.json", "[" * 100_000), "update.json: not readable as JSON"),
        (write_text("update.json", '{"format": 99}'), "not of a format this version reads"),
        (write_text("update.json", "[]"), "update.json: expected an object"),
        (lambda folder: (folder / "batch.json").unlink(), "batch.json: not readable as JSON"),
        (write_text("batch.json", "{}"), "is damaged .KeyError: 'non_tensor_batch'"),
        (write_text("batch.safetensors", "12345678abc"), "is damaged .SafetensorError: "),
        *((facts(**{key: value}), f"update.json: {key} is a {type(value).__name__}, and not") for key, value in WRONG),
        (facts(number=-1), "is damaged .update.json: step=1, number=-1"),
        (facts(metrics={"loss": "many"}), "is damaged .could not convert string to float: 'many'"),
        (facts(metrics={"loss": None}), "is damaged .TypeError: "),
        (write_text("update.json", '{"format": 1, "metrics": {}, "step": 1, "number": 0}'), ".KeyError: 'schedule'"),
    ],
)
def test_a_damaged_dump_is_refused(write, batch, damage, message):
    batch.batch["advantages"] = torch.zeros(len(batch), 6)
    folder = write()
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        read_dump(folder)


@pytest.mark.parametrize(
    ("role", "change", "message"),
    [
        ("actor", {"advantages": None}, "no column advantages"),
        ("actor", {"input_ids": None}, "no column input_ids"),
        ("critic", {}, "no column values"),
        ("process_reward", {}, "no column process_ref_log_prob"),
        ("rm", {}, "no column margin"),
        ("actor", {"advantages": torch.zeros(6, 2)}, "advantages has the shape (6, 2), and not (6, 6)"),
        ("actor", {"advantages": torch.zeros(6, 6).long()}, "advantages has dtype torch.int64"),
        ("actor", {"old_log_probs": torch.zeros(6)}, "old_log_probs has the shape (6,), and not (6, 6)"),
        ("actor", {"attention_mask": torch.ones(6, 3)}, "attention_mask has the shape (6, 3), and not (6, 13)"),
        ("actor", {"attention_mask": torch.full((6, 13), 2)}, "attention_mask holds other values than 0 and 1"),
        ("actor", {"attention_mask": torch.zeros(6, 13)}, "attention_mask has a row without a prompt"),
        ("actor", {"input_ids": torch.zeros(6, 13)}, "input_ids has dtype torch.float32 and shape (6, 13)"),
        ("rm", {"margin": torch.zeros(6)}, "input_ids has dtype torch.int64 and shape (6, 13)"),
    ],
)
def test_columns_that_an_update_cannot_read_are_refused(write, batch, role, change, message):
    batch.batch["advantages"] = torch.zeros(len(batch), 6)
    for name, column in change.items():
        if column is None:
            del batch.batch[name]
        else:
            batch.batch[name] = column
    with pytest.raises(CheckpointError, match=re.escape(f"is damaged (batch.safetensors: {message}")):
        read_dump(write(role=role))
