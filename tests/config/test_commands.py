"""The training lines that users type: each is read as written, or refused by the name of what is missing."""

import shlex
from pathlib import Path

import pytest

from burnish.config import Needs, finalise
from burnish.errors import NotAvailable

FILES = "data.train_files=\"['a.parquet']\" actor_rollout_ref.model.path=some/model"

PPO_LINE = r"""
    data.train_files=train.parquet data.val_files=test.parquet
    data.train_batch_size=16 data.max_prompt_length=512 data.max_response_length=256
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct critic.optim.lr=1e-5 critic.ppo_micro_batch_size_per_gpu=4
    algorithm.kl_ctrl.kl_coef=0.001 trainer.logger=console trainer.val_before_train=False trainer.n_gpus_per_node=1
    trainer.nnodes=1 trainer.save_freq=10 trainer.test_freq=10 trainer.total_epochs=3
"""


def test_ppo_with_a_critic(load):
    loaded = load(*shlex.split(PPO_LINE))
    notices = loaded.notices + finalise(loaded.config, loaded.explicit, Needs(critic=True))
    config = loaded.config
    assert config.critic.enable is True
    assert config.actor_rollout_ref.rollout.n == 1
    assert config.algorithm.use_kl_in_reward is True
    assert config.critic.ppo_mini_batch_size == 4
    assert config.trainer.logger == ["console"]
    assert notices == ["algorithm.use_kl_in_reward=true, because algorithm.kl_ctrl.kl_coef=0.001 is set"]


def test_grpo_without_a_group_size(load):
    line = """algorithm.adv_estimator=grpo data.train_files="['~/data/gsm8k/train.parquet']"
        data.val_files="['~/data/gsm8k/test.parquet']" actor_rollout_ref.model.path=~/models/Qwen2.5-7B-Instruct
        trainer.total_epochs=3 trainer.logger='["tensorboard"]'"""
    loaded = load(*shlex.split(line))
    notices = finalise(loaded.config, loaded.explicit, Needs(groups=True))
    assert loaded.config.actor_rollout_ref.rollout.n == 4
    assert loaded.config.critic.enable is False
    assert loaded.config.trainer.logger == ["tensorboard"]
    assert loaded.config.data.train_files == [str(Path.home() / "data/gsm8k/train.parquet")]
    assert loaded.config.actor_rollout_ref.model.path == str(Path.home() / "models/Qwen2.5-7B-Instruct")
    assert any("actor_rollout_ref.rollout.n=4" in notice for notice in notices)


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("algorithm.adv_estimator=grpo algorithm.group_size=4 trainer.total_epochs=10", Needs(groups=True)),
        (
            "algorithm.adv_estimator=gae algorithm.gamma=1.0 algorithm.lam=0.95 critic.enable=true "
            "critic.optim.lr=1e-5",
            Needs(critic=True),
        ),
        (
            "custom_reward_function.path=my_reward.py custom_reward_function.name=compute_score "
            "reward_model.reward_manager=naive",
            Needs(critic=True),
        ),
        (
            "reward_model.reward_manager=prime reward_model.sandbox_fusion.url='http://127.0.0.1:1/run' "
            "reward_model.sandbox_fusion.max_concurrent=128",
            Needs(critic=True),
        ),
        (
            "reward_model.enable=True reward_model.model.path=~/models/rm reward_model.model.input_tokenizer=t "
            "reward_model.micro_batch_size=64",
            Needs(critic=True),
        ),
        (
            "data.reward_fn_key=data_source algorithm.kl_penalty=0.01 actor_rollout_ref.rollout.temperature=0.7 "
            "actor_rollout_ref.rollout.top_p=0.9",
            Needs(critic=True),
        ),
        (
            "data.train_files=\"['a.parquet','b.parquet','c.parquet']\" data.dataset_weights=[0.5,0.3,0.2]",
            Needs(critic=True),
        ),
        (
            "data.train_files=\"['curriculum/stage2_medium.parquet']\" "
            "actor_rollout_ref.model.path=outputs/stage1/checkpoint-xxx",
            Needs(critic=True),
        ),
        (
            "trainer.logger='[\"wandb\"]' trainer.project_name=my_project trainer.run_name=exp1 "
            "trainer.log_generation_samples=true",
            Needs(critic=True),
        ),
        (
            "actor_rollout_ref.actor.lora.enable=true actor_rollout_ref.actor.lora.r=16 "
            "actor_rollout_ref.actor.lora.lora_alpha=32 "
            'actor_rollout_ref.actor.lora.target_modules=\'["q_proj","v_proj","k_proj","o_proj"]\'',
            Needs(critic=True),
        ),
        (
            "do_search=true max_turns=4 retriever.url=http://127.0.0.1:8000/retrieve retriever.topk=3 "
            "data.max_start_length=2048 data.max_obs_length=500 actor_rollout_ref.actor.state_masking=true "
            "actor_rollout_ref.rollout.n_agent=5",
            Needs(groups=True),
        ),
    ],
)
def test_lines_that_run(load, line, needs):
    loaded = load(*shlex.split(f"{FILES} {line}"))
    finalise(loaded.config, loaded.explicit, needs)


@pytest.mark.parametrize(
    ("line", "capability"),
    [("model_engine=megatron", "Megatron-core"), ("actor_rollout_ref.actor.strategy=megatron", "Megatron-core")],
)
def test_lines_that_wait_for_a_capability(load, line, capability):
    with pytest.raises(NotAvailable) as error:
        loaded = load(*shlex.split(f"{FILES} {line}"))
        finalise(loaded.config, loaded.explicit, Needs())
    assert str(error.value).startswith("not available yet: ")
    assert capability in str(error.value)
