"""Recipes as users have them: every key listed, most at their default, some that belong to other programs."""

import copy
from pathlib import Path

import pytest

from burnish.algorithms.needs import needs_of
from burnish.config import EVAL, RM, SFT
from burnish.config.build import build
from burnish.config.finalise import (
    EXAMPLES,
    GENERATION_EXAMPLES,
    SUPERVISED_EXAMPLES,
    finalise,
    finalise_eval,
    finalise_generation,
    finalise_rm,
    finalise_sft,
)
from burnish.config.key import keys_of
from burnish.config.load import GENERATION, PPO, load
from tests.config.conftest import nested, refused, told

ROLLOUT, GRPO = "actor_rollout_ref.rollout", {"algorithm.adv_estimator": "grpo"}
GENERATION_RECIPE = """
trainer: {nnodes: 1, n_gpus_per_node: 8, device: cuda}
data: {path: ~/a.parquet, n_samples: 5, output_path: ~/b.parquet}
model: {path: ~/m, external_lib: null}
rollout:
  {name: vllm, mode: sync, dtype: bfloat16, load_format: dummy_dtensor, disable_log_stats: true, n: 1,
   calculate_log_probs: false, log_prob_micro_batch_size_per_gpu: 8}
actor: {strategy: fsdp, entropy_checkpointing: false, fsdp_config: {fsdp_size: -1}}
ray_init: {num_cpus: null, timeline_json_file: null}
"""
EVAL_RECIPE = """
data: {path: ~/a.parquet, prompt_key: prompt}
custom_reward_function: {path: null, name: compute_score}
ray_init: {num_cpus: null, timeline_json_file: null}
"""
PPO_RECIPE = """
defaults: [actor@actor_rollout_ref.actor: dp_actor, _self_]
data: {train_files: ~/a.parquet, train_batch_size: 4}
actor_rollout_ref:
  hybrid_engine: true
  model: {path: m, lora_rank: 0, lora_alpha: 16, target_modules: all-linear}
  profiler: {discrete: false}
reward_model: {enable: false, model: {input_tokenizer: m, path: rm, fsdp_config: {param_offload: false}}}
custom_reward_function: {path: null, name: compute_score}
algorithm: {use_kl_in_reward: false, kl_ctrl: {type: fixed, kl_coef: 0.001}}
trainer:
  {logger: [console], profile_steps: null, resume_mode: auto, del_local_ckpt_after_load: false,
   controller_nsight_options: {trace: "cuda,nvtx", cuda-memory-usage: "true"}}
ray_init: {num_cpus: null, timeline_json_file: null}
"""


@pytest.fixture
def recipe(tmp_path):
    """The options that name a recipe of this text, which may be called like the built-in one."""

    def write(text: str, name: str) -> list[str]:
        (tmp_path / f"{name}.yaml").write_text(text)
        return [f"--config-path={tmp_path}", f"--config-name={name}"]

    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "dp_actor.yaml").write_text("strategy: fsdp\nppo_mini_batch_size: 4\n")
    return write


def test_a_generation_recipe_for_a_cluster_fails_only_by_what_is_not_here(recipe):
    words = recipe(GENERATION_RECIPE, "generation")

    def finished(*keys):
        (job,) = load([*words, *keys], GENERATION)
        return [*job.notices, *finalise_generation(job.config, job.explicit)]

    refused("needs the package vllm", finished)
    notices = finished("rollout.name=native")
    assert notices and not [notice for notice in notices if not notice.startswith("no effect: ")]
    assert told(notices, "rollout.calculate_log_probs") and told(notices, " actor (nothing is trained")


def test_an_evaluation_recipe(recipe):
    (job,) = load(recipe(EVAL_RECIPE, "evaluation"), EVAL)
    assert finalise_eval(job.config, job.explicit) == []
    assert job.notices == ["no effect: ray_init (this command runs without Ray)"]
    assert job.config.data.output_path == str(Path("~/a.eval.json").expanduser())


def test_a_training_recipe_with_a_defaults_list_switches_nothing_on(recipe):
    (job,) = load(recipe(PPO_RECIPE, "ppo_trainer"), PPO)
    notices = finalise(job.config, job.explicit, needs_of(job.config))
    assert job.config.actor_rollout_ref.actor.ppo_mini_batch_size == 4
    assert not job.config.algorithm.use_kl_in_reward and not job.config.reward_model.enable
    assert told(notices, "unused: algorithm.kl_ctrl.kl_coef")
    assert told(notices, "no effect: ", "controller_nsight_options", "profiler", "(no step is profiled)")


@pytest.mark.parametrize(
    ("schema", "required", "finish", "chosen"),
    [
        *(
            (PPO, EXAMPLES, lambda config, explicit: finalise(config, explicit, needs_of(config)), chosen)
            for chosen in (
                {},
                GRPO,
                GRPO | {"data.train_batch_size": 64},
                GRPO | {"do_search": True},
                {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "seq_final_reward"},
                {"trainer.resume_from_path": "run/global_step_3"},
                {"actor_rollout_ref.actor.state_masking": False},
                {f"{ROLLOUT}.val_kwargs.do_sample": True},
                {f"{ROLLOUT}.prompt_length": 100},
                {"algorithm.rollout_correction.rollout_is": "token"},
                {"reward_manager.name": "dapo"},
            )
        ),
        (SFT, SUPERVISED_EXAMPLES, finalise_sft, {"data.prompt_key": "q", "data.response_key": "a"}),
        (RM, SUPERVISED_EXAMPLES, finalise_rm, {}),
        (GENERATION, GENERATION_EXAMPLES, finalise_generation, {"rollout.temperature": 0}),
        (EVAL, {"data.path": "out.parquet"}, finalise_eval, {}),
    ],
)
def test_listing_every_key_at_its_default_changes_nothing(schema, required, finish, chosen):
    def finished(keys):
        built = build(nested(keys), schema.root, schema.aliases)
        finish(built.config, built.explicit)
        return built.config

    every = {name: copy.deepcopy(known.default) for name, known in keys_of(schema.root).items()}
    assert finished(every | required | chosen) == finished(required | chosen)
