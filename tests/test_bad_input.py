"""What a user can get wrong, through the command: exit code 2, no traceback, and a message with thing, value and fix.

Everything about keys, files, rows and the reward function is found before a model is loaded.
"""

import errno
import json
import os
import resource
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError

from burnish.algorithms import advantages
from burnish.cli.main import main
from burnish.config.actor import AGGREGATIONS, KL_KINDS, LOSSES
from burnish.config.algorithm import ESTIMATORS
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.tiny import write_tiny_model

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"]
LOADERS = [
    "burnish.workers.actor_rollout_ref.load_causal_lm",
    "burnish.workers.critic.load_value_model",
    "burnish.trainer.sft.load_causal_lm",
]
BOTH = pytest.mark.parametrize("command", ["ppo", "sft"])


@pytest.fixture
def place(tmp_path, tiny_model, monkeypatch):
    """A working directory with a model, rows for RL and for SFT, and a reward function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(tiny_model)
    write_parquet(arithmetic.rows("train", 4, seed=0), "train.parquet")
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    write_parquet([{"messages": messages}] * 4, "sft.parquet")
    (tmp_path / "reward.py").write_text("def compute_score(solution_str):\n    return float(len(solution_str))\n")
    return tmp_path


@pytest.fixture
def jobs(place):
    """The overrides of a right command of each kind."""
    common = ["trainer.device=cpu", "trainer.default_local_dir=run", "trainer.logger=jsonl"]
    ppo = [
        "data.train_files=train.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=4",
        "actor_rollout_ref.model.path=model",
        "custom_reward_function.path=reward.py",
        *GRPO,
        *common,
    ]
    sft = ["data.train_files=sft.parquet", "data.train_batch_size=4", "data.max_length=128", "model.path=model"]
    return {"ppo": ppo, "sft": [*sft, *common]}


@pytest.fixture
def run(jobs, capsys):
    """Run `burnish <command>` with its job and further overrides; returns (exit code, stdout, stderr)."""

    def run_command(command: str, *overrides: str) -> tuple[int, str, str]:
        given = {override.partition("=")[0] for override in overrides}
        job = [word for word in jobs[command] if word.partition("=")[0] not in given]
        code = main([command, *job, *(word for word in overrides if word.partition("=")[2] != "DROP")])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def refuses(run):
    """Run a command that must end as a user's mistake; returns the message."""

    def refused(command: str, *overrides: str) -> str:
        code, _, err = run(command, *overrides)
        assert code == 2, err
        message = err[err.index("burnish: error: ") :]
        assert "Traceback" not in err
        return message

    return refused


@pytest.fixture
def no_model(monkeypatch):
    """Loading a model is a failure of the test."""

    def load(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    for name in LOADERS:
        monkeypatch.setattr(name, load)


def assert_says(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in:\n{message}"


def test_the_right_command_runs(run):
    """So that every refusal below comes from what that test changes."""
    for command in ("ppo", "sft"):
        code, _, err = run(command, f"trainer.default_local_dir=run-{command}")
        assert code == 0, err


# Keys

CORRECTION = "algorithm.rollout_correction"
BAD_KEYS = {
    "unknown": (
        ["data.train_batchsize=4"],
        ["unknown key 'data.train_batchsize'", "did you mean 'data.train_batch_size'?"],
    ),
    "unknown with +": (["+trainer.total_epoch=4"], ["'trainer.total_epoch'", "did you mean 'trainer.total_epochs'?"]),
    "several unknown": (["data.sed=1", "optim.lr=1"], ["'data.seed'", "'actor_rollout_ref.actor.optim.lr'"]),
    "not a number": (["data.train_batch_size=many"], ["data.train_batch_size=many", "must be an integer"]),
    "out of range": (["actor_rollout_ref.rollout.top_p=1.5"], ["rollout.top_p=1.5", "at most 1"]),
    "no such choice": (["trainer.device=gpu"], ["trainer.device=gpu", "one of auto, cuda, cpu"]),
    "no such estimator": (
        ["algorithm.adv_estimator=grop"],
        ["algorithm.adv_estimator=grop", "did you mean 'grpo'?", *ESTIMATORS],
    ),
    "no such loss": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=vanila"],
        ["loss_mode=vanila", "did you mean 'vanilla'?", *LOSSES],
    ),
    "no such aggregation": (["actor_rollout_ref.actor.loss_agg_mode=mean"], ["loss_agg_mode=mean", *AGGREGATIONS]),
    "no such KL": (["algorithm.kl_penalty=k4", "algorithm.use_kl_in_reward=true"], ["kl_penalty=k4", *KL_KINDS]),
    "the whole KL": (["actor_rollout_ref.actor.kl_loss_type=full"], ["kl_loss_type=full", "whole vocabulary"]),
    "bounds out of order": (
        [f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=2.0_0.5"],
        [f"{CORRECTION}.rollout_is_threshold=2.0_0.5"],
    ),
    "masks without bounds": ([f"{CORRECTION}.rollout_rs=token_k1"], [f"{CORRECTION}.rollout_rs_threshold"]),
    "no such mask": (
        [f"{CORRECTION}.rollout_rs=token_k9", f"{CORRECTION}.rollout_rs_threshold=1.5"],
        ["token_k9", "token_k1"],
    ),
    "covariance bounds out of order": (
        ["actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov", "actor_rollout_ref.actor.policy_loss.clip_cov_lb=9"],
        ["clip_cov_lb=9", "clip_cov_ub=5"],
    ),
    "weights without components": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_weights=[1]"],
        ["gdpo_reward_weights", "gdpo_reward_keys"],
    ),
    "other weights than components": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a,b]", "algorithm.gdpo_reward_weights=[1]"],
        ["1 weights for the 2", "one for each"],
    ),
    "a KL that components do not see": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.use_kl_in_reward=true"],
        ["use_kl_in_reward", "gdpo_reward_keys", "use_kl_loss"],
    ),
    "a penalty that components do not see": (
        [
            "algorithm.adv_estimator=gdpo",
            "algorithm.gdpo_reward_keys=[a]",
            "algorithm.overlong_buffer.enable=true",
            "algorithm.overlong_buffer.len=2",
        ],
        ["overlong_buffer", "gdpo_reward_keys", "overlong_reward"],
    ),
    "weights that are no weights": (
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[a]", "algorithm.gdpo_reward_weights=[0]"],
        ["gdpo_reward_weights=[0.0]", "not all 0"],
    ),
    "greedy samples against a greedy baseline": (
        ["algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.do_sample=false"],
        ["do_sample=false", "remax"],
    ),
    "no room for the overlong buffer": (["algorithm.overlong_buffer.enable=true"], ["overlong_buffer.len=0"]),
    "rounds of generation without a filter": (["data.gen_batch_size=8"], ["gen_batch_size=8", "filter_groups.enable"]),
    "no process reward for prime": (
        ["algorithm.adv_estimator=prime", "process_reward.enable=false"],
        ["process_reward.enable=false", "prime"],
    ),
    "not true or false": (["data.shuffle=maybe"], ["data.shuffle=maybe", "true or false"]),
    "unsupported": (
        ["actor_rollout_ref.actor.fsdp_config.grad_offload=true"],
        ["grad_offload", "not supported", "param_offload"],
    ),
    "batches do not divide": (
        ["data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=5"],
        ["data.train_batch_size=16", "ppo_mini_batch_size=5", "4 and 8"],
    ),
    "mini-batch over the batch": (
        ["actor_rollout_ref.actor.ppo_mini_batch_size=8"],
        ["ppo_mini_batch_size=8 is more than data.train_batch_size=4"],
    ),
    "no critic for gae": (
        ["algorithm.adv_estimator=gae", "critic.enable=false"],
        ["critic.enable=false", "gae needs a critic"],
    ),
    "no model": (
        ["actor_rollout_ref.model.path=DROP"],
        ["actor_rollout_ref.model.path must be set", "for example actor_rollout_ref.model.path="],
    ),
    "no files": (["data.train_files=DROP"], ["data.train_files must be set", "for example data.train_files="]),
    "no such logger": (["trainer.logger=tensorbord"], ["trainer.logger=tensorbord", "Did you mean tensorboard?"]),
    "longer than the context": (
        ["data.max_prompt_length=500", "data.max_response_length=100"],
        ["data.max_prompt_length=500", "data.max_response_length=100", "600", "context of 512", "lower"],
    ),
    "no override": (["--verbose"], ["--verbose"]),
    "not key=value": (["data.train_files"], ["data.train_files", "key=value"]),
}


@pytest.mark.parametrize(("overrides", "parts"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_keys(refuses, no_model, overrides, parts):
    assert_says(refuses("ppo", *overrides), *parts)


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if advantages.needs_of(name).groups])
def test_groups_of_one(refuses, no_model, name):
    said = refuses("ppo", f"algorithm.adv_estimator={name}", "actor_rollout_ref.rollout.n=1")
    assert_says(said, "rollout.n=1", name, "at least 2", "leave")


BAD_SFT_KEYS = {
    "unknown": (["data.maxlength=4"], ["unknown key 'data.maxlength'", "did you mean 'data.max_length'?"]),
    "wrong type": (["optim.lr=fast"], ["optim.lr=fast", "must be a number"]),
    "no model": (["model.path=DROP"], ["model.path must be set"]),
    "half a pair": (["data.prompt_key=q"], ["data.prompt_key and data.response_key go together"]),
    "longer than the context": (["data.max_length=600"], ["data.max_length=600", "512"]),
    "no such logger": (["trainer.logger=tensorbord"], ["trainer.logger=tensorbord", "Did you mean tensorboard?"]),
}


@pytest.mark.parametrize(("overrides", "parts"), BAD_SFT_KEYS.values(), ids=BAD_SFT_KEYS)
def test_sft_keys(refuses, no_model, overrides, parts):
    assert_says(refuses("sft", *overrides), *parts)


@BOTH
def test_a_gpu_where_there_is_none(refuses, no_model, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_says(refuses(command, "trainer.device=cuda"), "trainer.device=cuda", "torch sees no", "cpu")


@BOTH
def test_debug_shows_where(run, command):
    code, _, err = run(command, "data.train_files=nowhere.parquet", "--debug")
    assert code == 2
    assert err.startswith("Traceback") and "DataError: data.train_files: data file not found: nowhere.parquet" in err


def test_plan_is_arithmetic_only(run, no_model, place):
    code, out, err = run("ppo", "--plan", "data.train_batch_size=2", "trainer.total_epochs=3")
    assert code == 0, err
    plan = dict(line.split("  ", 1) for line in out.splitlines())
    assert plan["sequences per step"].split()[0] == "4"
    assert plan["tokens per step, at most"].split()[0] == str(4 * 36)
    assert plan["steps in total"].split()[0] == "6"
    assert "GiB" in plan["estimated peak memory"] or "MiB" in plan["estimated peak memory"]
    assert not (place / "run").exists()


# Files and rows


@BOTH
def test_a_file_that_is_not_there(refuses, no_model, command):
    there = {"ppo": "train.parquet", "sft": "sft.parquet"}[command]
    message = refuses(command, f"data.train_files=['{there}','trian.parquet']")
    assert_says(message, "data.train_files: data file not found: trian.parquet", "working directory")


@BOTH
def test_a_validation_file_that_is_not_there(refuses, no_model, command):
    assert_says(refuses(command, "data.val_files=test.parquet"), "data.val_files: data file not found: test.parquet")


@BOTH
def test_an_unreadable_parquet(refuses, no_model, place, command):
    whole = (place / "train.parquet").read_bytes()
    (place / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    message = refuses(command, "data.train_files=broken.parquet")
    assert_says(
        message, "data.train_files: broken.parquet: not a readable parquet file", f"{len(whole) // 2} bytes", "again"
    )


@BOTH
def test_an_unknown_format(refuses, no_model, place, command):
    (place / "rows.csv").write_text("a,b\n1,2\n")
    assert_says(refuses(command, "data.train_files=rows.csv"), "rows.csv: unknown format", ".parquet", ".jsonl")


@BOTH
def test_a_missing_column(refuses, no_model, command):
    write_parquet([{"question": "2+2", "answer": "4"}], "rows.parquet")
    message = refuses(command, "data.train_files=rows.parquet")
    key, column = {"ppo": ("data.prompt_key", "prompt"), "sft": ("data.messages_key", "messages")}[command]
    assert_says(message, f"rows.parquet: no column '{column}'", "question, answer", f"Name the right one in {key}")


@BOTH
def test_an_empty_dataset(refuses, no_model, command):
    pq.write_table(pa.table({"prompt": pa.array([], pa.string()), "messages": pa.array([], pa.string())}), "no.parquet")
    assert_says(refuses(command, "data.train_files=no.parquet"), "data.train_files: no.parquet: the file has no rows")


def arithmetic_rows(**changes) -> list[dict]:
    """Four rows; `changes` go into the third."""
    rows = arithmetic.rows("train", 4, seed=0)
    rows[2] |= changes
    return rows


BAD_ROWS = {
    "no ground truth": (
        {"reward_model": {"style": "rule", "ground_truth": None}},
        ["reward_model.ground_truth is missing", "'arithmetic'", "'burnish/arithmetic'", "fill it in"],
    ),
    "unknown data source": (
        {"data_source": "my/task"},
        ["data_source='my/task' has no built-in scorer", "custom_reward_function.path"],
    ),
    "no data source": (
        {"data_source": None},
        [
            "the row has no data_source",
            "set custom_reward_function.path=my_reward.py",
            "Available: openai/gsm8k, gsm8k",
        ],
    ),
    "near a known data source": ({"data_source": "openai/gms8k"}, ["did you mean 'openai/gsm8k'?"]),
    "scorer that comes later": ({"data_source": "math"}, ["not available yet", "math"]),
    "reward model": (
        {"reward_model": {"style": "model", "ground_truth": "1"}},
        ["reward_model.style='model'", "not available yet"],
    ),
    "no prompt": ({"prompt": None}, ["field 'prompt' is missing or null"]),
    "no message": ({"prompt": []}, ["field 'prompt'"]),
    "message without content": ({"prompt": [{"role": "user", "content": None}]}, ["field 'prompt'", "content"]),
}


@pytest.mark.parametrize(("changes", "parts"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows(refuses, no_model, changes, parts):
    write_parquet(arithmetic_rows(**changes), "rows.parquet")
    message = refuses("ppo", "data.train_files=rows.parquet", "custom_reward_function.path=DROP")
    assert_says(message, "rows.parquet, row 2", *parts)


def test_a_ground_truth_beside_the_reward_model(refuses, no_model, place):
    (place / "mine.py").write_text("def compute_score(solution_str, ground_truth):\n    return 0.0\n")
    (place / "rows.jsonl").write_text('{"prompt": "2+2=?", "ground_truth": "4"}\n')
    message = refuses("ppo", "data.train_files=rows.jsonl", "custom_reward_function.path=mine.py")
    assert_says(message, "rows.jsonl, row 0", "the row has 'ground_truth' at top level; put it under reward_model: {")


def test_an_empty_path_of_a_reward_function(refuses, no_model, place):
    (place / "rows.jsonl").write_text('{"prompt": "2+2=?"}\n')
    message = refuses("ppo", "data.train_files=rows.jsonl", "custom_reward_function.path=")
    assert_says(message, "rows.jsonl, row 0", "the row has no data_source", "custom_reward_function.path=my_reward.py")


@BOTH
def test_a_recipe_that_does_not_exist(refuses, no_model, command):
    message = refuses(command, "--config-name=recipes/nosuch")
    assert_says(message, "--config-name=nosuch: no nosuch.yaml in", "(there: cispo, clip_higher, curriculum, dapo")


def test_a_prompt_over_the_limit(refuses, no_model):
    write_parquet(arithmetic_rows(prompt=[{"role": "user", "content": "2+2" * 20}]), "rows.parquet")
    message = refuses("ppo", "data.train_files=rows.parquet", "data.truncation=error")
    assert_says(message, "rows.parquet, row 2", "data.max_prompt_length=32", "data.truncation", "filter_overlong")


def test_all_prompts_over_the_limit(refuses, no_model):
    message = refuses("ppo", "data.max_prompt_length=4", "data.filter_overlong_prompts=True")
    assert_says(message, "all 4 prompts are over data.max_prompt_length=4", "Raise the limit")


def test_an_sft_example_over_the_limit(refuses, no_model):
    message = refuses("sft", "data.max_length=10")
    assert_says(message, "sft.parquet, row 0", "data.max_length=10", "data.truncation")


def test_an_sft_row_without_an_answer(refuses, no_model):
    write_parquet([{"messages": [{"role": "user", "content": "2+2"}]}], "rows.parquet")
    assert_says(refuses("sft", "data.train_files=rows.parquet"), "rows.parquet, row 0", "assistant")


# Models

MODEL_KEY = {"ppo": "actor_rollout_ref.model.path", "sft": "model.path"}


@pytest.fixture
def broken_model(place, tiny_model):
    """A copy of the model without the files of these names."""

    def make(*without: str) -> str:
        shutil.copytree(tiny_model, place / "broken")
        for pattern in without:
            for path in (place / "broken").glob(pattern):
                path.unlink()
        return "broken"

    return make


@BOTH
def test_a_model_without_weights(refuses, broken_model, command):
    message = refuses(command, f"{MODEL_KEY[command]}={broken_model('*.safetensors')}")
    assert_says(message, "broken", "no weights", "*.safetensors")


@BOTH
def test_a_model_without_tokenizer(refuses, no_model, broken_model, command):
    folder = broken_model("tokenizer*", "vocab*", "special*", "merges*", "chat_template*", "added*")
    message = refuses(command, f"{MODEL_KEY[command]}={folder}")
    assert_says(message, "broken: no tokenizer", "tokenizer.json", "model.tokenizer_path")


@BOTH
def test_a_model_without_configuration(refuses, no_model, broken_model, command):
    message = refuses(command, f"{MODEL_KEY[command]}={broken_model('config.json')}")
    assert_says(message, "broken", "no config.json", "the model path must name")


@BOTH
@pytest.mark.parametrize("path", ["~/no/such/model", "no-such-model"])
def test_a_model_that_is_not_there(refuses, no_model, command, path):
    message = refuses(command, f"{MODEL_KEY[command]}={path}")
    assert_says(message, os.path.expanduser(path), "no such folder")


@BOTH
def test_weights_that_are_cut_off(refuses, broken_model, command):
    folder = Path(broken_model())
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_says(refuses(command, f"{MODEL_KEY[command]}={folder}"), "broken", "model.safetensors")


# Reward functions

CALL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    "
UNLOADABLE = {
    "no such file": (None, ["custom_reward_function.path=rewrd.py", "no such file", "did you mean reward.py?"]),
    "no such name": (
        "def compute_scores(solution_str):\n    return 1.0\n",
        ["custom_reward_function.name=compute_score", "no such name", "did you mean compute_scores?"],
    ),
    "not a function": ("compute_score = 3\n", ["custom_reward_function.name=compute_score", "int", "cannot be called"]),
    "wrong signature": (
        "def compute_score(prediction, ground_truth):\n    return 1.0\n",
        ["custom_reward_function.name=compute_score", "prediction", "solution_str"],
    ),
    "batch form": (
        "def compute_score(solution_strs, ground_truths):\n    return [1.0]\n",
        ["not available yet", "solution_strs", "reward_manager=batch", "compute_score(data_source"],
    ),
}


@pytest.mark.parametrize(("source", "parts"), UNLOADABLE.values(), ids=UNLOADABLE)
def test_a_reward_function_that_cannot_be_used(refuses, no_model, place, source, parts):
    if source is not None:
        (place / "reward.py").write_text(source)
    path = "rewrd.py" if source is None else "reward.py"
    assert_says(refuses("ppo", f"custom_reward_function.path={path}"), *parts)


def test_a_reward_function_that_cannot_be_imported(run, no_model, place):
    (place / "reward.py").write_text("import no_such_package\n")
    code, _, err = run("ppo")
    assert code == 2
    assert_says(err, "custom_reward_function.path=reward.py: importing it failed", "No module named 'no_such_package'")


FAILING = {
    "raises": ('raise KeyError("lost")', ["KeyError: 'lost'", "reward.py"]),
    "hangs": ("import time; time.sleep(60)", ["0.3 s", "reward.timeout"]),
    "returns NaN": ('return float("nan")', ["compute_score of reward.py returned nan", "finite number"]),
    "returns a string": ('return "good"', ["compute_score of reward.py returned", "'good'", "finite number"]),
    "returns None": ("return None", ["compute_score of reward.py returned None", "finite number"]),
    "returns a dict without score": ('return {"reward": 1}', ['a dict without "score"', "reward"]),
}


@pytest.mark.parametrize(("body", "parts"), FAILING.values(), ids=FAILING)
def test_a_reward_function_that_fails(run, place, body, parts):
    (place / "reward.py").write_text(f"{CALL}{body}\n")
    code, _, err = run("ppo", "reward.timeout=0.3", "reward.retries=0", "trainer.val_before_train=False")
    assert code == 2, err
    message = err[err.index("burnish: error: ") :]
    assert_says(message, "stopped after scoring", "of 8 samples: ", "reward.max_failure_ratio=0.05", *parts)
    assert "burnish/trainer" not in message, "a traceback shows the user's lines, not ours"
    assert not list(place.glob("run/global_step_*"))


def test_groups_that_are_all_alike(refuses, place):
    (place / "reward.py").write_text("def compute_score(solution_str):\n    return {'score': 0.5, 'acc': 1}\n")
    said = refuses("ppo", "custom_reward_function.path=reward.py", "algorithm.filter_groups.enable=true",
                   "algorithm.filter_groups.max_num_gen_batches=2")  # fmt: skip
    assert_says(said, "step 1: nothing to learn from", "2 rounds", "the same acc", "max_num_gen_batches")


def test_a_component_that_the_function_does_not_return(refuses, place):
    (place / "reward.py").write_text("def compute_score(solution_str):\n    return {'score': 0.5, 'format': 1}\n")
    said = refuses("ppo", "custom_reward_function.path=reward.py", "algorithm.adv_estimator=gdpo",
                   "algorithm.gdpo_reward_keys=[format,correct]")  # fmt: skip
    assert_says(said, "algorithm.gdpo_reward_keys names 'correct'", "data_source", "score, format")


def test_an_option_no_scorer_has(refuses, no_model):
    message = refuses("ppo", "custom_reward_function.path=DROP", "+custom_reward_function.reward_kwargs.methd=strict")
    assert_says(message, "custom_reward_function.reward_kwargs.methd", "did you mean method?")


# Checkpoints


def full_disk(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_in_safetensors(*_args, **_kwargs):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@BOTH
@pytest.mark.parametrize("writer", [full_disk, full_disk_in_safetensors])
def test_a_full_disk(refuses, place, monkeypatch, command, writer):
    monkeypatch.setattr("burnish.engine.state.save_file", writer)
    message = refuses(command)
    assert_says(message, "cannot write checkpoint run/global_step_1", "No space left on device", "free space",
                "trainer.default_local_dir")  # fmt: skip
    assert not (place / "run/global_step_1").exists()


@BOTH
def test_a_full_disk_for_real(refuses, run, place, command):
    """The system itself refuses to let a file grow; after mending, the same command goes through."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        message = refuses(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_says(message, "cannot write checkpoint run/global_step_1", "File too large", "trainer.default_local_dir")
    code, _, err = run(command)
    assert code == 0, err
    assert (place / "run/global_step_1/model.safetensors").exists()


@BOTH
def test_a_folder_that_became_read_only(refuses, monkeypatch, command):
    mkdir = Path.mkdir

    def refuse(self, *args, **kwargs):
        if self.name.startswith(".global_step_"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        mkdir(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = refuses(command)
    assert_says(message, "cannot write checkpoint run/global_step_1", "Read-only file system",
                "trainer.default_local_dir")  # fmt: skip


@BOTH
def test_a_run_folder_that_cannot_be(refuses, no_model, place, command):
    (place / "taken").write_text("a file")
    message = refuses(command, "trainer.default_local_dir=taken/run")
    assert_says(message, "trainer.default_local_dir=taken/run", "cannot write there")


@pytest.fixture
def saved(run):
    """A finished run of one step; returns its checkpoint."""

    def make(command: str) -> Path:
        code, _, err = run(command)
        assert code == 0, err
        return Path("run/global_step_1")

    return make


WEIGHTS = {"ppo": "actor/model.safetensors", "sft": "model.safetensors"}


@BOTH
def test_a_truncated_checkpoint(refuses, saved, request, command):
    folder = saved(command)
    request.getfixturevalue("no_model")  # from here on
    weights = folder / WEIGHTS[command]
    size = weights.stat().st_size
    os.truncate(weights, 100)
    message = refuses(command, f"trainer.resume_from_path={folder}", "trainer.total_training_steps=2")
    assert_says(message, "checkpoint run/global_step_1 is truncated", "resume from an earlier step")
    assert_says(message, f"model.safetensors has 100 bytes instead of {size}")


@BOTH
def test_a_truncated_newest_checkpoint_is_passed_over_and_named(run, saved, refuses, command):
    whole = saved(command)
    damaged = shutil.copytree(whole, whole.with_name("global_step_2"), symlinks=True)
    (whole.parent / "latest_checkpointed_iteration.txt").write_text("2")
    os.truncate(damaged / WEIGHTS[command], 100)
    code, _, err = run(command)
    assert code == 0, err
    assert_says(err, "WARNING", "global_step_2", "model.safetensors")
    os.truncate(whole / WEIGHTS[command], 100)  # with no whole one left, starting over has to be asked for
    assert_says(refuses(command), "has checkpoints, but none is whole", "trainer.resume_mode=disable")


@BOTH
def test_resuming_from_nowhere(refuses, no_model, command):
    message = refuses(command, "trainer.resume_from_path=run/global_step_7")
    assert_says(message, "no checkpoint at run/global_step_7", "trainer.resume_from_path")


@BOTH
def test_resuming_from_another_model(refuses, saved, place, command):
    saved(command)
    write_tiny_model(place / "other", hidden_size=16)
    message = refuses(command, f"{MODEL_KEY[command]}=other", "trainer.total_training_steps=2")
    assert_says(message, "run/global_step_1", "checkpoint of another model", "trainer.resume_mode=disable")


def test_resuming_from_a_checkpoint_of_another_trainer(refuses, saved, place):
    saved("sft")
    message = refuses("ppo", "trainer.resume_from_path=run/global_step_1")
    assert_says(message, "run/global_step_1 is not a checkpoint of `burnish ppo`", "data/trainer.json")
    shutil.rmtree(place / "run")
    saved("ppo")
    message = refuses("sft", "trainer.resume_from_path=run/global_step_1", "trainer.default_local_dir=other")
    assert_says(message, "run/global_step_1 is not a checkpoint of `burnish sft`")


def test_damaged_trainer_state(refuses, saved):
    folder = saved("ppo")
    state = folder / "data/trainer.json"
    text = state.read_text()
    state.write_text("?" * len(text))
    message = refuses("ppo", "trainer.total_training_steps=2")
    assert_says(message, "run/global_step_1/data/trainer.json is damaged", "resume from another step")
    state.write_text(json.dumps({"step": 1}).ljust(len(text)))
    message = refuses("ppo", "trainer.total_training_steps=2")
    assert_says(message, "run/global_step_1/data/trainer.json is damaged", "experience")
