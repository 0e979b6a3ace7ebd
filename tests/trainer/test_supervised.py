"""What `burnish sft` and `burnish rm` have in common: the loop, its checkpoints, and what is refused; and what
`burnish sft` learns, what a step's loss is, and how its passes are filled."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config import SFTConfig
from burnish.data.chat import ChatRenderer
from burnish.data.examples import Batches
from burnish.engine.forward import Forward
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.models.tiny import write_tiny_model
from burnish.tracking import Tracker
from burnish.tracking.background import Background
from burnish.trainer.checkpoint import CheckpointStore
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft import NextTokens
from burnish.trainer.sft_trainer import main as sft
from burnish.trainer.supervised import EXAMPLES, SupervisedTrainer, tokens_per_pass
from tests.trainer.conftest import CONVERSATIONS, interrupted, jsonl, without_times
from tests.trainer.tampering import seal

EACH = pytest.mark.parametrize("command", ["sft", "rm"])


@pytest.fixture
def run(supervised):
    return lambda command, *overrides, out="run": supervised(sft if command == "sft" else rm, *overrides, out=out)


@EACH
def test_resume_is_the_same_run(run, tmp_path, command):
    steps = ("trainer.total_training_steps=6", "trainer.save_freq=3", "optim.lr_scheduler_type=cosine")
    straight, metrics = run(command, *steps, out="straight")
    (tmp_path / "killed").mkdir()
    shutil.copytree(straight / "global_step_3", tmp_path / "killed" / "global_step_3")
    lines = (straight / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed" / "metrics.jsonl").write_text("".join(lines[:4]))  # step 4 was logged, but not saved
    resumed, again = run(command, *steps, out="killed")
    assert without_times(again) == without_times(metrics)
    ours, theirs = ((folder / "global_step_6" / "model.safetensors").read_bytes() for folder in (straight, resumed))
    assert ours == theirs and (resumed / "latest_checkpointed_iteration.txt").read_text().strip() == "6"


def test_a_checkpoint_that_is_being_written_is_completed_first(run, tmp_path, monkeypatch):
    outcome, is_stopped = Background.outcome, []

    def stop_once(self, *, wait):
        if self._jobs.running and self.kind == "checkpoint" and not is_stopped:
            is_stopped.append(True)
            raise KeyboardInterrupt
        return outcome(self, wait=wait)

    monkeypatch.setattr(Background, "outcome", stop_once)
    with pytest.raises(KeyboardInterrupt):
        run("sft", "trainer.save_freq=2")
    assert is_stopped and CheckpointStore(tmp_path / "run").latest().name == "global_step_2"


@pytest.mark.parametrize(("owner", "name"), [(SupervisedTrainer, "train_step"), (Tracker, "log")])
def test_ctrl_c_in_a_step_saves_it(run, tmp_path, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name), 2))
    with pytest.raises(KeyboardInterrupt):
        run("sft", "trainer.save_freq=null", "data.val_files=null")
    assert CheckpointStore(tmp_path / "run").latest().name == "global_step_2"
    assert [line["step"] for line in jsonl(tmp_path / "run/metrics.jsonl")] == [1, 2]


def test_epochs_count_the_steps_and_old_checkpoints_are_pruned(run):
    epochs = ("trainer.total_training_steps=null", "trainer.total_epochs=2")
    folder, metrics = run("sft", *epochs, "trainer.save_freq=1", "trainer.max_ckpt_to_keep=2")
    assert [step["training/epoch"] for step in metrics] == [0, 0, 0, 1], "7 examples in batches of 3"
    assert sorted(p.name for p in folder.glob("global_step_*")) == ["global_step_3", "global_step_4"]


def test_a_run_from_scratch_does_not_move_its_model(run):
    folder, _ = run("sft", "trainer.total_training_steps=1")
    with pytest.raises(ConfigError, match=r"model.path=\S+global_step_1 was left by an earlier run in"):
        run("sft", f"model.path={folder / 'global_step_1'}", "trainer.resume_mode=disable")
    assert (folder / "global_step_1").is_dir()


@EACH
def test_a_second_stage_has_its_own_folder_and_added_examples_do_not(run, world, tmp_path, caplog, command):
    folder, _ = run(command, "trainer.total_training_steps=1")
    other = f"data.train_files={shutil.copy(world / 'val.parquet', tmp_path / 'other.parquet')}"
    _, first = run(command, other, f"model.path={folder / 'global_step_1'}", "trainer.total_training_steps=2")
    assert len(first) == 1 and len(jsonl(tmp_path / "run-2/metrics.jsonl")) == 2
    _, longer = run(command, "data.train_files=[" + f"{world / 'train.parquet'},{world / 'val.parquet'}]")
    assert len(longer) == 4 and f"{EXAMPLES}: 7 → 10, drawn in another order" in caplog.text


@EACH
def test_a_checkpoint_that_does_not_fit_is_refused(run, monkeypatch, command):
    folder, _ = run(command, "trainer.total_training_steps=1")
    for load in ("sft.load_causal_lm", "rm.load_reward_model"):  # what follows is found without a model
        monkeypatch.setattr(f"burnish.trainer.{load}", None)
    with pytest.raises(CheckpointError, match=r"written with data.train_batch_size=3, this run has 2"):
        run(command, "data.train_batch_size=2")
    other = "rm" if command == "sft" else "sft"
    with pytest.raises(CheckpointError, match=rf"is not a checkpoint of `burnish {other}`, but of `burnish {command}`"):
        run(other)
    state = folder / "global_step_1" / "trainer.json"
    state.write_text("[]")
    seal(state.parent)
    with pytest.raises(CheckpointError, match=rf"step_1 is not a checkpoint of `burnish {command}`: .* trainer.json"):
        run(command, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder / 'global_step_1'}")


@pytest.mark.parametrize(
    ("command", "changes", "said"),
    [
        ("sft", ["data.max_length=127"], "data.max_length=128, this run has 127"),
        ("sft", ["data.truncation=right"], "data.truncation=.*, this run has right"),
        ("sft", ["data.messages_key=talk"], "data.messages_key=messages, this run has talk"),
        ("rm", ["data.chosen_key=rejected", "data.rejected_key=chosen"], "data.chosen_key=chosen, this run has rej"),
        ("rm", ["data.margin_key=gap"], "data.margin_key=None, this run has gap"),
    ],
)
def test_a_run_that_resumes_keeps_its_examples(run, command, changes, said):
    run(command, "trainer.total_training_steps=1")
    with pytest.raises(CheckpointError, match=f"written with {said}.*: it would continue with"):
        run(command, *changes)


def test_keys_that_changed_since_the_checkpoint_are_logged(run, caplog):
    run("sft", "trainer.total_training_steps=2", "optim.lr=0.01")
    assert "changed since" not in caplog.text
    run("sft", "trainer.total_training_steps=3", "optim.lr=0.5", "data.packing=false")
    told = [record.getMessage() for record in caplog.records if "changed since" in record.getMessage()]
    changes = ("data.packing: True → False", "optim.lr: 0.01 → 0.5", "trainer.total_training_steps: 2 → 3")
    assert told == [f"changed since that checkpoint: {change}" for change in changes]


def test_activations_are_kept_where_they_fit_and_no_metric_depends_on_it(run, monkeypatch, caplog):
    def line(folder):
        return next(line for line in (folder / "config.yaml").read_text().splitlines() if "checkpointing" in line)

    caplog.set_level("INFO")
    folder, kept = run("sft", out="kept")
    assert line(folder).endswith(": false") and "activations are kept, " in caplog.text
    run("sft", "trainer.total_training_steps=2")
    monkeypatch.setattr("burnish.config.plan.host_memory", lambda: 2**20)
    folder, recomputed = run("sft", "trainer.total_training_steps=4")
    assert line(folder).endswith(": true") and "activations are recomputed: " in caplog.text
    assert without_times(recomputed) == without_times(kept)
    assert "changed since that checkpoint: model." not in caplog.text


@EACH
def test_mistakes_are_named_before_the_model_loads(run, tmp_path, monkeypatch, command):
    for load in ("sft.load_causal_lm", "rm.load_reward_model"):
        monkeypatch.setattr(f"burnish.trainer.{load}", None)
    with pytest.raises(ConfigError, match=r"data.max_length=512, but .*model has a context of 256 tokens"):
        run(command, "data.max_length=512")
    few = write_tiny_model(tmp_path / "few", context=256, vocab_size=100)
    ids = r"its tokenizer gives the examples ids up to \d+, .* a vocabulary of 100 "
    with pytest.raises(ModelError, match=rf"model.path=.*few: {ids}"):
        run(command, f"model.path={few}")
    assert not (tmp_path / "run").exists()


@EACH
def test_plan_explains_and_trains_nothing(run, tmp_path, capsys, command):
    """By default a pass holds 16384 tokens: of a pair, those of both sides."""
    words = ("data.train_batch_size=2", "trainer.total_training_steps=null", "trainer.total_epochs=5", "--plan")
    assert run(command, *words) is None
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    kind = "examples" if command == "sft" else "pairs"
    assert ["training", kind, "7,"] in [line[:3] for line in said] and [kind, "per", "step", "2"] in said
    assert ["steps", "in", "all", "15"] in said and ["steps", "per", "epoch", "3"] in said
    holds = ["16384", "tokens"] if command == "sft" else ["64", "pairs"]
    assert ["one", "pass", "holds", "at", "most", *holds] in said
    assert run(command, "data.train_batch_size=100", "--plan") is None
    assert [kind, "per", "step", "7"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert not (tmp_path / "run").exists()


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


def test_it_learns_and_leaves_a_model_that_transformers_loads(run, world):
    folder, metrics = run("sft", f"data.val_files={world / 'val.parquet'}", "trainer.total_training_steps=12")
    assert metrics[-1]["train/loss"] < metrics[0]["train/loss"] - 1
    assert {"train/lr", "train/grad_norm", "val/loss"} <= metrics[-1].keys() and "val/loss" not in metrics[0]
    last = folder / "global_step_12"
    assert metrics[-1]["val/loss"] == pytest.approx(hand_loss(last, CONVERSATIONS[:3]), abs=1e-5)
    assert AutoTokenizer.from_pretrained(last)("1+1")["input_ids"]


def test_loss_is_the_mean_over_assistant_tokens_of_the_batch(run, world):
    _, metrics = run("sft", "data.train_batch_size=7", "trainer.total_training_steps=1")
    assert metrics[0]["train/loss"] == pytest.approx(hand_loss(world / "model", CONVERSATIONS), abs=1e-5)


@pytest.mark.parametrize(
    "layout",
    [
        ("data.packing=false",),
        ("data.packing=false", "data.micro_batch_size_per_gpu=1"),
        ("data.packing=true", "data.micro_batch_size_per_gpu=1", "data.max_length=90"),
    ],
)
def test_neither_packing_nor_micro_batches_change_the_run(run, layout):
    steps = ("data.train_batch_size=5", "trainer.total_training_steps=3", "optim.lr=0.001")
    _, whole = run("sft", *steps, "data.micro_batch_size_per_gpu=64", out="whole")
    _, cut = run("sft", *steps, *layout, out="cut")
    for one, other in zip(whole, cut, strict=True):
        assert other["train/loss"] == pytest.approx(one["train/loss"], abs=1e-5)
        assert other["train/grad_norm"] == pytest.approx(one["train/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("packing", [True, False])
def test_passes_are_filled_by_tokens_or_hold_a_number_of_examples(run, monkeypatch, packing):
    passes = []

    plain = Forward.log_probs

    def watched(forward, packed):
        passes.append(packed.sequences.lengths)
        return plain(forward, packed)

    monkeypatch.setattr(Forward, "log_probs", watched)
    sizes = ("data.train_batch_size=7", "trainer.total_training_steps=1", "data.micro_batch_size_per_gpu=2")
    run("sft", *sizes, f"data.packing={packing}", "data.max_length=128")
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


def test_a_checkpoint_from_before_keys_were_kept_is_resumed(run):
    def make_old(step, **facts):
        path = folder / f"global_step_{step}" / "trainer.json"
        old = {"data.train_batch_size": 3, "data.seed": 1, "data.shuffle": True, "number of training examples": 7}
        path.write_text(json.dumps(old | {"bad_steps": 0} | facts))
        seal(path.parent)

    folder, _ = run("sft", "trainer.total_training_steps=1")
    make_old(1)
    _, metrics = run("sft", "trainer.total_training_steps=2")
    assert [step["training/global_step"] for step in metrics] == [1, 2]
    make_old(2, **{"data.seed": 2})
    with pytest.raises(CheckpointError, match=r"written with data.seed=2, this run has 1"):
        run("sft", "trainer.total_training_steps=3")
