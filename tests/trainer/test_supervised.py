"""What `burnish sft` and `burnish rm` have in common: the loop, its checkpoints, and what is refused."""

import shutil

import pytest

from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.models.tiny import write_tiny_model
from burnish.tracking.background import Background
from burnish.trainer.checkpoint import CheckpointStore
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft
from tests.trainer.conftest import without_times

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
    state.write_text("[]".ljust(state.stat().st_size))
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
    assert not (tmp_path / "run").exists()
