"""`burnish replay`: an update comes out as it did in its run, bit for bit, and what is wrong with it is named."""

import json
import logging
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.cli.main import main
from burnish.engine.dump import KEPT
from burnish.engine.trainable import Trainable
from burnish.errors import BadStepError
from burnish.trainer.replay import replay, report
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft
from tests.trainer.conftest import events

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
GAE = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "data.val_files=null"]
PRIME = ["algorithm.adv_estimator=prime", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
ONE_STEP = ["trainer.max_bad_steps=9", "trainer.total_training_steps=1"]
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
TERMS = [f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]
CHOICE = [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_ratio=0.5"]
POISONED = 4  # a row of the batch


def text_of(metrics):
    return {name: repr(value) for name, value in metrics.items()}


@pytest.fixture
def flagged(monkeypatch):
    """Every update is finite, but taken for bad: it is dumped, and not applied."""
    optim_step = Trainable.optim_step

    def run(self, *arguments):
        before = {name: master.detach().clone() for name, master in self.masters.items()}
        metrics = optim_step(self, *arguments)
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(before[name])
        self.write_compute_weights()
        return metrics | {"bad_step": 1.0}

    monkeypatch.setattr(Trainable, "optim_step", run)


def check_comes_out_the_same(folder, verdict="loss and gradient are finite"):
    outcome = replay(folder)
    seen = text_of(outcome.dump.update.metrics)
    assert {"loss", "grad_norm"} < seen.keys() and float(seen["grad_norm"]) != 0
    assert text_of(outcome.metrics) == {name: seen[name] for name in seen if name not in ("lr", "bad_step")}
    said = report(outcome)
    assert verdict in said and "(differs)" not in said
    assert not outcome.is_finite or not (outcome.rows or outcome.weights or outcome.gradients or outcome.module)
    return outcome, said


POLICY = {"log_prob", "log_ratio", "advantages", "old_log_probs"}


@pytest.mark.parametrize(
    ("keys", "name", "largest"),
    [
        ([*GRPO, *TERMS, f"{MODEL}.dtype=bfloat16"], "actor_1", POLICY | {"ref_log_prob"}),
        ([*GRPO, *CHOICE], "actor_1", POLICY),
        ([*GRPO, "algorithm.rollout_correction.bypass_mode=True"], "actor_1", POLICY),
        ([*GRPO, f"{MODEL}.lora_rank=4"], "actor_1", POLICY),
        (GAE, "critic_1", {"value", "values", "returns"}),
        (PRIME, "process_reward_0", {"process_ref_log_prob"}),
    ],
    ids=["terms", "choice", "bypass", "lora", "critic", "process_reward"],
)
def test_an_update_comes_out_bit_for_bit(reward, train, flagged, keys, name, largest):
    reward("return float(len(set(solution_str)) % 2)")
    train(*keys, *ONE_STEP)
    outcome, said = check_comes_out_the_same(Path("run/bad_steps", f"step_1_{name}"))
    role, _, number = name.rpartition("_")
    assert largest <= outcome.largest.keys() and (role != "critic" or largest == outcome.largest.keys())
    assert f"optimiser step {number} of {role} (burnish ppo)" in said


def test_a_plain_policys_update_comes_out_bit_for_bit(dump):
    assert check_comes_out_the_same(dump)[0].largest.keys() >= POLICY


COMMANDS = pytest.mark.parametrize(("command", "name"), [(sft, "sft"), (rm, "rm")])


@pytest.fixture
def examples(supervised, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = ["data.micro_batch_size_per_gpu=2", "trainer.max_bad_steps=9", "trainer.default_local_dir=run"]
    return lambda command, *overrides: supervised(command, *keys, *overrides)


@COMMANDS
def test_updates_on_examples_come_out_bit_for_bit(examples, flagged, command, name):
    examples(command, "trainer.total_training_steps=2")
    check_comes_out_the_same(Path(f"run/bad_steps/step_2_{name}_0"))


@COMMANDS
def test_a_learning_rate_that_explodes_is_replayed(examples, command, name, caplog):
    message = r"in 4 updates in a row, up to step \d+. Lower optim.lr"
    with pytest.raises(BadStepError, match=message), caplog.at_level(logging.WARNING):
        examples(command, "optim.lr=1e30", "trainer.total_training_steps=20", "trainer.max_bad_steps=4")
    folder, *others = sorted(Path("run/bad_steps").iterdir())
    assert len(others) == KEPT - 1 and f"`burnish replay {folder}` runs it again" in caplog.text
    assert f"is not dumped: the run has {KEPT} dumps already" in caplog.text
    check_is_as_bad_as_it_was(folder)
    assert [len(event["dumps"]) for event in events("bad_step")] == [1, 1, 1, 0]


def check_is_as_bad_as_it_was(folder):
    outcome, said = check_comes_out_the_same(folder, "loss or gradient is NaN or infinite")
    assert not outcome.is_finite
    return outcome, said


def test_a_run_that_exploded_is_replayed(train, capsys, caplog):
    """The first update of the step leaves weights with which the second is NaN."""
    with pytest.raises(BadStepError), caplog.at_level(logging.WARNING):
        train(*GRPO, f"{ACTOR}.optim.lr=1e30", "trainer.max_bad_steps=1")
    folder = Path("run/bad_steps/step_1_actor_1")
    assert f"`burnish replay {folder}` runs it again" in caplog.text
    outcome, said = check_is_as_bad_as_it_was(folder)
    assert main(["replay", str(folder)]) == 1 and capsys.readouterr().out == f"{said}\n"
    assert len(outcome.rows) == outcome.computed and outcome.gradients and outcome.module
    assert f"first module with such an output: {outcome.module}" in said


def test_a_bad_row_is_reported_and_the_run_continues(build_trainer, metrics_of):
    trainer = build_trainer(*GRPO, f"{ACTOR}.ppo_mini_batch_size=4")
    worker = trainer.policy.worker
    update = worker.update_actor

    def poisoned(data, step):
        if step == 2:
            data.batch["advantages"][POISONED, 1:3] = math.nan
        return update(data, step)

    trainer.policy.update_actor = poisoned
    trainer.fit()
    assert [line.get("failures/bad_steps") for line in metrics_of("run")] == [None, 1, None]
    [folder] = Path("run/bad_steps").iterdir()
    outcome, said = check_is_as_bad_as_it_was(folder)
    [row] = outcome.rows
    assert (row.number, row.token) == (POISONED, 1) and math.isnan(row.loss) and math.isnan(row.values["advantages"])
    assert row.uid == outcome.dump.batch.non_tensor_batch["uid"][POISONED]
    attention = outcome.dump.batch.batch["attention_mask"][POISONED]
    assert row.prompt + row.response == int(attention.sum()) and row.response > 1
    sampled = float(outcome.dump.batch.batch["rollout_log_probs"][POISONED, 1])
    assert row.values["rollout_log_probs"] == sampled
    assert row.values["log_prob"] == pytest.approx(sampled, abs=1e-4)
    alone = f"rows with NaN or infinity when run alone: 1 of {outcome.computed}"
    assert f"{alone}\n  row {POISONED}, uid {row.uid}: " in said
    assert f"first at token 1: log_prob {row.values['log_prob']!r}" in said
    assert outcome.module is None and not outcome.weights and outcome.gradients
    assert outcome.computed < len(outcome.dump.batch), "rows without advantage are not run, and yet counted"
    for name in ("advantages", "rollout_log_probs"):
        value, place = outcome.largest[name]
        assert float(outcome.dump.batch.batch[name][place.row, place.token]) == value


def test_a_weight_that_is_not_finite_is_named(build_trainer):
    name = "model.layers.1.mlp.down_proj"
    trainer = build_trainer(*GRPO, "trainer.max_bad_steps=1")
    worker = trainer.policy.worker
    update = worker.update_actor

    def poisoned(data, step):
        with torch.no_grad():
            worker.actor.module.get_submodule(name).weight[0, 0] = math.inf
        return update(data, step)

    trainer.policy.update_actor = poisoned
    with pytest.raises(BadStepError):
        trainer.fit()
    outcome, said = check_is_as_bad_as_it_was(Path("run/bad_steps/step_1_actor_0"))
    assert outcome.weights == [f"{name}.weight"] and outcome.module == name
    assert f"weights that are not finite: 1: {name}.weight" in said


@pytest.fixture
def dump(made, tmp_path, monkeypatch, request):
    """A dump of a finite update, which a test may change."""
    kept = made[0] / "dump"
    if not kept.exists():
        request.getfixturevalue("flagged")
        request.getfixturevalue("train")(*GRPO, *ONE_STEP)
        shutil.copytree("run/bad_steps/step_1_actor_1", kept)
        shutil.rmtree("run")
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(kept, "run/bad_steps/step_1_actor_1"))


def columns_of(dump, change):
    columns = load_file(dump / "batch.safetensors")
    change(columns)
    save_file(columns, dump / "batch.safetensors")


def change_facts(dump, change):
    facts = json.loads((dump / "update.json").read_text())
    change(facts)
    (dump / "update.json").write_text(json.dumps(facts))


def test_keys_can_be_set_otherwise(dump, capsys):
    assert main(["replay", str(dump), "actor_rollout_ref.model.dtype=bfloat16", "trainer.device=cpu"]) == 0
    assert "(differs)" in capsys.readouterr().out
    plain, other = replay(dump), replay(dump, [f"{ACTOR}.loss_agg_mode=token-sum"])
    tokens = int(plain.dump.batch.batch["response_mask"].sum())
    assert other.metrics["grad_norm"] == pytest.approx(plain.metrics["grad_norm"] * tokens, rel=1e-4)
    columns_of(dump, lambda columns: columns.update(ref_log_prob=columns["rollout_log_probs"] - 0.5))
    with_kl = replay(dump, [f"{ACTOR}.kl_loss_coef=0.1"])
    assert with_kl.metrics["actor/kl_loss"] > 0 and with_kl.metrics["loss"] > plain.metrics["loss"]
    assert replay(dump, CHOICE).is_finite, "a loss that picks tokens picks them"


def test_what_cannot_be_replayed_is_refused(dump, capsys):
    columns_of(dump, lambda columns: columns.pop("old_log_probs"))
    for words, message in (
        ([str(dump), f"{ACTOR}.clip_rato=0.3"], "did you mean"),
        ([str(dump), f"{ACTOR}.use_kl_loss=True"], "the dump comes from a run without a reference policy"),
        ([str(dump), f"{ACTOR}.kl_loss_coef=0.1"], f"leave out use_kl_loss and {ACTOR}.kl_loss_coef"),
        ([str(dump), "algorithm.rollout_correction.bypass_mode=True"], "bypass_mode=true: it says what the old log-"),
        ([str(dump), "--device=cpu"], "--device=cpu"),
        (["run"], f"no update.json. Name a folder bad_steps/step_N_ROLE_NUMBER of a run; there are {dump}"),
    ):
        assert main(["replay", *words]) == 2
        assert message in capsys.readouterr().err
    (dump / "model" / "config.json").unlink()
    assert main(["replay", str(dump)]) == 2
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("token", [-1, 259])
def test_a_token_unknown_to_the_model_is_reported(dump, capsys, token):
    def change(columns):
        columns["input_ids"][:, -1] = token
        columns["attention_mask"][:, -1] = 1

    columns_of(dump, change)
    assert main(["replay", str(dump)]) == 2
    assert f"is damaged (input_ids has the token {token}, and the vocabulary of " in capsys.readouterr().err


def test_old_log_probs_that_a_bypass_reads_are_there(dump, capsys):
    columns_of(dump, lambda columns: columns.pop("old_log_probs"))
    change_facts(dump, lambda facts: facts["config"].update({"algorithm.rollout_correction.bypass_mode": True}))
    assert main(["replay", str(dump)]) == 2
    assert "is damaged (no column old_log_probs)" in capsys.readouterr().err


def test_a_dump_of_another_version_is_reported(dump, caplog):
    change_facts(dump, lambda facts: facts["versions"].update(torch="1.0"))
    with caplog.at_level(logging.WARNING):
        replay(dump)
    assert "the dump was written with torch 1.0, this is" in caplog.text


HOSTILE = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


@pytest.mark.parametrize("trusts", [False, True])
def test_a_dump_runs_no_code_that_the_command_line_does_not_name(dump, monkeypatch, tmp_path, capsys, trusts):
    """A library, a loss, and code beside the weights: each is run only where it is given again."""
    source = f"{HOSTILE}from burnish.algorithms.losses.vanilla import vanilla as plain\n"
    (tmp_path / "evil_loss.py").write_text(source)
    (tmp_path / "evil_lib.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    code = {
        "actor_rollout_ref.model.external_lib": "evil_lib",
        f"{ACTOR}.policy_loss.loss_mode": "evil_loss:plain",
        "actor_rollout_ref.model.trust_remote_code": True,
    }
    change_facts(dump, lambda facts: facts["config"].update(code))
    settings = json.loads((dump / "model/config.json").read_text())
    settings["auto_map"] = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    (dump / "model/config.json").write_text(json.dumps(settings))
    (dump / "model/evil.py").write_text(HOSTILE)
    given = [f"{name}={str(value).lower()}" for name, value in code.items()]
    if not trusts:
        for i, file in enumerate([tmp_path / "evil_lib.ran", tmp_path / "evil_loss.ran", dump / "model/evil.ran"]):
            assert main(["replay", str(dump), *(word for j, word in enumerate(given) if j != i)]) == 2
            said = capsys.readouterr().err
            assert f"if you trust it: burnish replay {dump} {given[i]}\n" in said and "Traceback" not in said
            assert not file.exists()
            (tmp_path / "evil_lib.ran").unlink(missing_ok=True)  # named on the command line the next time
            (tmp_path / "evil_loss.ran").unlink(missing_ok=True)
        return
    assert main(["replay", str(dump), *given[:2], "actor_rollout_ref.model.trust_remote_code=false"]) == 0
    assert (tmp_path / "evil_loss.ran").exists() and not (dump / "model/evil.ran").exists()
