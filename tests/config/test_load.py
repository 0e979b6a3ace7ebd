"""From a command line: Hydra's grammar, our flags, recipes, sweeps, mistakes, and training lines that users type."""

import logging
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from burnish.algorithms.needs import needs_of
from burnish.config import PPO, Needs, finalise, load_sft, run
from burnish.config.build import to_recipe, to_yaml
from burnish.errors import ConfigError, NotAvailable
from tests.config.conftest import refused

RECIPE = """
algorithm: {adv_estimator: grpo, group_size: 6}
trainer:
  experiment_name: from-recipe
  logger: [console, tensorboard]
"""


def no_rules(config, explicit):
    return []


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "plain.yaml").write_text(RECIPE)
    (folder / "with_defaults.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\n" + RECIPE)
    return folder


def test_hydras_grammar(load):
    loaded = load(
        "data.train_files=['a.parquet','~/b.parquet']",
        "+trainer.logger=[console,tensorboard]",
        "++trainer.seed=7",
        "--data.seed=5",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.model.path=~/models/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.actor.optim.betas=[0.9,0.95]",
        "actor_rollout_ref.model.override_config={attention_dropout:0.1}",
        "+actor_rollout_ref.model.override_config.rope_theta=5",
        "trainer.total_training_steps=null",
        "custom_reward_function.path='my reward.py'",
    )
    config = loaded.config
    assert config.data.train_files == ["a.parquet", "~/b.parquet"]
    assert config.trainer.logger == ["console", "tensorboard"]
    assert (config.trainer.seed, config.data.seed) == (7, 5)
    assert config.actor_rollout_ref.actor.optim.betas == [0.9, 0.95]
    assert config.actor_rollout_ref.model.path == str(Path("~/models/Qwen2.5-7B-Instruct").expanduser())
    assert config.actor_rollout_ref.model.override_config == {"attention_dropout": 0.1, "rope_theta": 5}
    assert config.custom_reward_function.path == "my reward.py"
    assert "trainer.seed" in loaded.explicit
    assert "trainer.total_epochs" not in loaded.explicit


def test_home_folders_and_digits_in_lists_quotes_and_sweeps(load):
    files = load("data.train_files=[~/a.parquet,~/b.parquet]").config.data.train_files
    assert files == [str(Path.home() / "a.parquet"), str(Path.home() / "b.parquet")]
    config = load("data.train_batch_size=1_024", "+actor_rollout_ref.model.override_config.rope_theta=1_000").config
    assert config.data.train_batch_size == 1024
    assert config.actor_rollout_ref.model.override_config == {"rope_theta": 1000}
    files = load("""data.train_files=[1_2, '3_4,5_6,7', "8_9", a_1]""").config.data.train_files
    assert files == ["1_2", "3_4,5_6,7", "8_9", "a_1"]
    jobs = []
    run(["-m", "trainer.experiment_name=1_2,3_4"], PPO, no_rules, jobs.append)
    assert [job.config.trainer.experiment_name for job in jobs] == ["1_2", "3_4"]


@pytest.mark.parametrize("key", ["trainer.experiment_name", "trainer.run_name"])
@pytest.mark.parametrize("text", ["2024_01_02", "1_2.0", "0.5_2", "3"])
def test_text_of_digits_stays_as_it_was_typed(load, key, text):
    assert load(f"{key}={text}").config.trainer.experiment_name == text


def test_flags_are_taken_out(load):
    flags = load("--plan", "trainer.seed=2", "--debug", "--cfg", "job").flags
    assert (flags.plan, flags.debug, flags.print_config) == (True, True, True)
    flags = load("trainer.seed=2").flags
    assert (flags.plan, flags.debug, flags.print_config, flags.gpu_memory) == (False, False, False, None)
    assert load("--plan", "--gpu-memory", "23.5").flags.gpu_memory == 47 * 2**29


@pytest.mark.parametrize("name", ["plain", "with_defaults", "plain.yaml"])
def test_a_recipe_with_and_without_a_defaults_list(recipes, load, name):
    loaded = load("--config-path=recipes", f"--config-name={name}", "trainer.experiment_name=typed")
    assert loaded.config.actor_rollout_ref.rollout.n == 6
    assert loaded.config.trainer.logger == ["console", "tensorboard"]
    assert loaded.config.trainer.experiment_name == "typed"
    assert "algorithm.group_size is read as actor_rollout_ref.rollout.n=6" in loaded.notices
    assert "algorithm.adv_estimator" in loaded.explicit


def test_where_recipes_are_found_and_what_wins_over_them(recipes, load):
    assert load("--config-name=recipes/plain.yaml").config.trainer.experiment_name == "from-recipe"
    arguments = ("--config-path=recipes", "--config-name=plain")
    assert load(*arguments, "actor_rollout_ref.rollout.n=3").config.actor_rollout_ref.rollout.n == 3
    assert load(*arguments, "trainer.run_name=mine").config.trainer.experiment_name == "mine"
    assert load("--config-name=recipes/dr_grpo").config.algorithm.norm_adv_by_std_in_grpo is False
    assert load("--config-path=recipes", "trainer.seed=3").config.trainer.seed == 3
    assert load("--config-path=recipes", "--config-name=ppo_trainer").explicit == frozenset()
    (recipes / "size").mkdir()
    (recipes / "size" / "small.yaml").write_text("# @package _global_\ndata: {train_batch_size: 8}\n")
    loaded = load("--config-path=recipes", "--config-name=plain", "+size=small")
    assert loaded.config.data.train_batch_size == 8
    (recipes / "plain.yaml").rename("mine.yaml")  # in the working directory
    assert load("--config-path=recipes", "--config-name=mine").config.trainer.experiment_name == "from-recipe"


def test_missing_folders_and_recipes_are_errors(recipes, load):
    said = rf"^--config-name=plane: no plane\.yaml in {recipes}.*did you mean plain\? \(there: .*with_defaults"
    for arguments in (("--config-path=recipes", "--config-name=plane"), ("--config-name=recipes/plane.yaml",)):
        refused(said, load, *arguments)
    refused(r"=plain: no plain\.yaml in .*, nor any other recipe", load, "--config-name=plain")  # it is in recipes/
    refused(r"--config-path=nowhere: no such folder .*" + str(recipes.parent), load, "--config-path=nowhere")
    refused("Megatron-core", load, "--config-name=ppo_megatron_trainer", error=NotAvailable)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trainer: {total_epoch: 3}", "unknown key 'trainer.total_epoch'; did you mean 'trainer.total_epochs'?"),
        ("data: {seed: one}", "data.seed=one: must be an integer of at least 0"),
        ("actor_rollout_ref: {actor: {strategy: megatron}}", "training with Megatron-core"),
        ("critic: {fsdp_config: {grad_offload: true}}", "is not supported"),
        ("defaults: [no_such_group/thing]", "no_such_group"),
        ("trainer: [", "plain.yaml"),
    ],
)
def test_recipes_are_checked_like_the_command_line(recipes, load, text, message):
    (recipes / "plain.yaml").write_text(text)
    refused(re.escape(message), load, "--config-path=recipes", "--config-name=plain")


def test_a_tilde_takes_back_what_the_recipe_sets(recipes, load):
    loaded = load("--config-path=recipes", "--config-name=plain", "~trainer.experiment_name", "~trainer.seed")
    assert loaded.config.trainer.experiment_name == "run"
    assert "trainer.experiment_name" not in loaded.explicit
    assert "~trainer.seed: the recipe does not set it; its default stays" in loaded.notices
    refused(r"unknown key 'trainer.sed'; did you mean 'trainer.seed'", load, "~trainer.sed")
    refused("takes no value", load, "~trainer.seed=1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer.logger=console,tensorboard"], "a list is written key=[a,b], several runs need --multirun"),
        (["data.train_files=a=(b"], "cannot read 'data.train_files=a=(b'"),
        (["data.train_files=[a.parquet"], "needs quotes inside quotes"),
        (["trainer.seed"], "'trainer.seed' is not an option or a key with a value"),
        (["--plann"], "unknown option '--plann'"),
        (["--cfg", "hydra"], "--cfg job prints the whole configuration"),
        (["--config-name"], "expected one argument"),
        (["--gpu-memory", "80"], "--gpu-memory 80: it is the memory of the GPUs that --plan plans for"),
        (["--plan", "--gpu-memory=0"], "give a number of at least 1"),
        (["--plan", "--gpu-memory=80GB"], "--gpu-memory 80GB: it is the memory of the GPUs"),
        (["data.seed=1", "data=3"], "'data' is a section, not a key"),
        *(([f"{plus}data.sed=3"], "unknown key 'data.sed'; did you mean 'data.seed'") for plus in ("", "+", "++")),
    ],
)
def test_unreadable_arguments_are_refused(load, arguments, message):
    refused(re.escape(message), load, *arguments)


def test_hydra_leaves_no_trace(tmp_path, monkeypatch, load, capfd):
    monkeypatch.chdir(tmp_path)
    handlers, argv, environment = list(logging.getLogger().handlers), list(sys.argv), dict(os.environ)
    load("trainer.seed=3")
    refused("trainer.seed=x", load, "trainer.seed=x")
    assert list(tmp_path.iterdir()) == []
    assert logging.getLogger().handlers == handlers
    assert sys.argv == argv
    assert dict(os.environ) == environment
    assert capfd.readouterr() == ("", "")


def test_every_job_of_a_sweep_has_its_own_configuration_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    run(["--multirun", "algorithm.group_size=2,4", "trainer.seed=1,2"], PPO, no_rules, seen.append)
    jobs = [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert [(job.config.actor_rollout_ref.rollout.n, job.config.trainer.seed) for job in seen] == jobs
    assert [job.config.trainer.experiment_name for job in seen] == [f"run-n_{n}-seed_{seed}" for n, seed in jobs]
    assert seen[1].notices[-1] == "job 2 of 4 is called run-n_2-seed_2"
    assert list(tmp_path.iterdir()) == []


def test_names_folders_and_recipes_of_a_sweep(load):
    seen = []
    run(["--multirun", "trainer.seed=3,4", "algorithm.lam=0.5,1"], PPO, no_rules, seen.append)
    folder = f"outputs/burnish/{seen[0].config.trainer.experiment_name}/global_step_3"
    assert load(f"actor_rollout_ref.model.path={folder}").config.actor_rollout_ref.model.path == folder
    seen = []
    run(["-m", "trainer.seed=1,2", "trainer.default_local_dir=out"], PPO, no_rules, seen.append)
    assert [job.given["trainer.experiment_name"] for job in seen] == ["run-seed_1", "run-seed_2"]
    assert [job.given["trainer.default_local_dir"] for job in seen] == ["out/seed_1", "out/seed_2"]


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        (["trainer.seed=3,4", "trainer.experiment_name=mr"], ["mr-seed_3", "mr-seed_4"]),
        (["actor_rollout_ref.actor.optim.lr=1e-6,1e-5"], ["run-lr_1e-06", "run-lr_1e-05"]),
        (["actor_rollout_ref.actor.optim.lr=1e-6,1e-5", "critic.optim.lr=1e-5"], ["run-lr_1e-06", "run-lr_1e-05"]),
        (
            ["actor_rollout_ref.actor.optim.lr=1,2", "critic.optim.lr=3,4"],
            [f"run-actor.optim.lr_{a}-critic.optim.lr_{c}" for a in ("1.0", "2.0") for c in ("3.0", "4.0")],
        ),
        (["data.train_files=/d/a b.jsonl,/d/c.jsonl"], ["run-train_files_d_a_b.jsonl", "run-train_files_d_c.jsonl"]),
        (["trainer.seed=5,5"], ["run-1", "run-2"]),
        (["data.train_files=a/b.json,a_b.json"], ["run-train_files_a_b.json-1", "run-train_files_a_b.json-2"]),
        (["trainer.experiment_name=a,b", "trainer.seed=1,2"], ["a-seed_1", "a-seed_2", "b-seed_1", "b-seed_2"]),
    ],
)
def test_the_jobs_of_a_sweep_are_named_by_what_is_swept(swept, names):
    seen = []
    run(["--multirun", *swept], PPO, no_rules, seen.append)
    assert [job.config.trainer.experiment_name for job in seen] == names


def test_a_bad_job_stops_a_sweep_before_the_first_one_runs_and_errors_of_a_task_rise():
    seen = []

    def finish(config, explicit):
        if config.trainer.seed == 2:
            raise ConfigError("2 does not go with the rest")
        return []

    def task(loaded):
        raise KeyError("from the task")

    refused("trainer.seed=x", run, ["--multirun", "trainer.seed=1,x"], PPO, no_rules, seen.append)
    refused("does not go with the rest", run, ["--multirun", "trainer.seed=1,2"], PPO, finish, seen.append)
    assert seen == []
    refused("from the task", run, ["trainer.seed=1"], PPO, no_rules, task, error=KeyError)


def test_help_and_cfg_job_print_and_run_nothing(capsys):
    run(["--help"], PPO, no_rules, lambda loaded: pytest.fail("must not run"))
    assert "burnish ppo --help" in capsys.readouterr().out

    def finish(config, explicit):
        assert explicit == {"trainer.seed"}
        config.actor_rollout_ref.rollout.n = 4
        return []

    run(["--cfg", "job", "trainer.seed=1"], PPO, finish, lambda loaded: pytest.fail("must not run"))
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["trainer"]["seed"], printed["actor_rollout_ref"]["rollout"]["n"]) == (1, 4)


SET_BY_HAND = """
data.train_files=~/a.parquet data.val_files=b.parquet data.train_batch_size=64 actor_rollout_ref.model.path=m
actor_rollout_ref.model.override_config={rope_theta:5} 'actor_rollout_ref.rollout.stop=["a, b"]'
algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.01 data.max_prompt_length='${data.train_batch_size}'
algorithm.rollout_correction.rollout_is_threshold=1_2.0 trainer.total_training_steps=null
"""


@pytest.fixture
def run_again(recipes, load):
    """A finished job from the recipe.yaml of an earlier run, with further keys typed after it."""

    def again(*typed):
        earlier = load(*shlex.split(SET_BY_HAND))
        finalise(earlier.config, earlier.explicit, Needs(groups=True))
        (recipes / "recipe.yaml").write_text(to_recipe(earlier.given))
        (recipes / "config.yaml").write_text(to_yaml(earlier.config))
        loaded = load("--config-path=recipes", "--config-name=recipe", *typed)
        loaded.notices += finalise(loaded.config, loaded.explicit, Needs(groups=True))
        return earlier, loaded

    return again


def test_the_recipe_of_a_run_is_that_run_and_keys_can_be_taken_back(run_again):
    earlier, again = run_again()
    assert again.config == earlier.config and again.given == earlier.given
    assert again.config.data.max_prompt_length == 64
    assert again.config.algorithm.rollout_correction.rollout_is_threshold == "1_2.0"
    _, again = run_again("~algorithm.kl_ctrl.kl_coef")
    assert not again.config.algorithm.use_kl_in_reward
    assert "algorithm.kl_ctrl.kl_coef" not in again.explicit


def test_the_recipe_of_a_run_takes_overrides_and_derives_defaults_from_them(run_again):
    """None of these collides with a value that the earlier run filled in."""
    typed = "data.max_prompt_length=1024 data.train_batch_size=512 trainer.experiment_name=again ~data.val_files"
    typed += " actor_rollout_ref.model.path=other actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.clip_ratio=0.3"
    typed += " actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_epochs=3"
    _, again = run_again(*typed.split())
    policy, critic = again.config.actor_rollout_ref, again.config.critic
    assert (policy.rollout.n, policy.rollout.n_agent) == (8, 8)
    assert policy.rollout.prompt_length == 1024
    assert again.config.data.gen_batch_size == 512
    assert again.config.data.val_files == []
    assert critic.model.path == "other"
    assert (policy.actor.clip_ratio_low, policy.actor.clip_ratio_high) == (0.3, 0.3)
    assert (critic.ppo_mini_batch_size, critic.ppo_epochs) == (32, 3)
    assert again.config.trainer.default_local_dir == "outputs/burnish/again"


def test_a_resolved_configuration_is_refused_as_a_recipe(run_again, recipes, load):
    run_again()
    said = r"config\.yaml: a resolved configuration.*use --config-name=recipe"
    refused(said, load, "--config-path=recipes", "--config-name=config", "actor_rollout_ref.rollout.n=8")
    (recipes / "recipe.yaml").unlink()
    refused("keep the keys that you set", load, "--config-name=recipes/config.yaml")


def test_sft_and_a_search_path_that_does_not_exist(recipes, load):
    config = load_sft(["model.partial_pretrain=m", "optim.clip_grad=0.5"]).config
    assert (config.model.path, config.optim.grad_clip) == ("m", 0.5)
    text = "hydra:\n  searchpath:\n    - file://verl/trainer/config\ndefaults:\n  - ppo_trainer\n  - _self_\n" + RECIPE
    (recipes / "searching.yaml").write_text(text)
    loaded = load("--config-path=recipes", "--config-name=searching")
    assert loaded.config.trainer.experiment_name == "from-recipe"
    assert any("verl/trainer/config" in notice for notice in loaded.notices)


LINES = r"""
data.train_batch_size=16 data.max_prompt_length=512 data.max_response_length=256 \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=4 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 critic.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 critic.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 algorithm.kl_ctrl.kl_coef=0.001 data.val_files=test.parquet \
    trainer.val_before_train=False trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=10 trainer.test_freq=10
algorithm.adv_estimator=grpo algorithm.group_size=4 trainer.total_epochs=10
algorithm.adv_estimator=gae algorithm.gamma=1.0 algorithm.lam=0.95 critic.enable=true critic.optim.lr=1e-5
custom_reward_function.path=my_reward.py custom_reward_function.name=compute_score reward_model.reward_manager=naive
reward_model.reward_manager=prime reward_model.sandbox_fusion.url='http://127.0.0.1:1/run' \
    reward_model.sandbox_fusion.max_concurrent=128
reward_model.enable=True reward_model.model.path=~/models/rm reward_model.model.input_tokenizer=t \
    reward_model.micro_batch_size=64
data.reward_fn_key=data_source algorithm.kl_penalty=0.01 actor_rollout_ref.rollout.temperature=0.7 \
    actor_rollout_ref.rollout.top_p=0.9
data.train_files="['a.parquet','b.parquet','c.parquet']" data.dataset_weights=[0.5,0.3,0.2]
data.train_files="['curriculum/stage2_medium.parquet']" actor_rollout_ref.model.path=outputs/stage1/checkpoint-xxx
trainer.logger='["wandb"]' trainer.project_name=my_project trainer.run_name=exp1 trainer.log_generation_samples=true
actor_rollout_ref.actor.lora.enable=true actor_rollout_ref.actor.lora.r=16 actor_rollout_ref.actor.lora.lora_alpha=32 \
    actor_rollout_ref.actor.lora.target_modules='["q_proj","v_proj","k_proj","o_proj"]'
algorithm.adv_estimator=grpo do_search=true max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve retriever.topk=3 \
    data.max_start_length=2048 data.max_obs_length=500 actor_rollout_ref.actor.state_masking=true \
    actor_rollout_ref.rollout.n_agent=5
"""


@pytest.mark.parametrize("line", LINES.strip().replace("\\\n", "").splitlines())
def test_lines_that_run(load, line):
    loaded = load("data.train_files=['a.parquet']", "actor_rollout_ref.model.path=some/model", *shlex.split(line))
    finalise(loaded.config, loaded.explicit, needs_of(loaded.config))
