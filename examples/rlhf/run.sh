#!/usr/bin/env bash
# RLHF from end to end: fine-tuning on demonstrations, a reward model from preferences, PPO with it. Further keys are PPO's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
nano="$here/../../burnish/models/nano"
out=${OUT:-outputs/rlhf}
questions=${QUESTIONS:-512} sft_steps=${SFT_STEPS:-48} rm_steps=${RM_STEPS:-60} ppo_steps=${PPO_STEPS:-32}

python3 "$here/make_data.py" "$out/data" "$questions"

burnish sft model.path="$nano" data.train_files="$out/data/sft.parquet" data.max_length=128 \
    data.train_batch_size=32 optim.lr=3e-4 optim.lr_scheduler_type=cosine \
    trainer.total_training_steps="$sft_steps" trainer.default_local_dir="$out/sft"
policy="$out/sft/global_step_$sft_steps"

burnish generate model.path="$policy" data.path="$out/data/questions.parquet" data.output_path="$out/data/answers.parquet" \
    data.n_samples=6 data.overwrite=true rollout.temperature=1 rollout.response_length=64
python3 "$here/make_pairs.py" "$out/data/answers.parquet" "$out/data"

burnish rm model.path="$policy" data.train_files="$out/data/pairs_train.parquet" \
    data.val_files="$out/data/pairs_test.parquet" data.max_length=128 data.train_batch_size=32 \
    optim.lr=3e-4 optim.lr_scheduler_type=cosine \
    trainer.total_training_steps="$rm_steps" trainer.default_local_dir="$out/rm"
reward_model="$out/rm/global_step_$rm_steps"

# The critic starts from the reward model. The penalty for leaving the policy of the first step is in the reward.
burnish ppo algorithm.adv_estimator=gae algorithm.lam=0.95 algorithm.use_kl_in_reward=true algorithm.kl_ctrl.kl_coef=0.02 \
    reward_model.enable=true reward_model.model.path="$reward_model" \
    critic.model.path="$reward_model" critic.optim.lr=1e-4 \
    actor_rollout_ref.model.path="$policy" actor_rollout_ref.actor.optim.lr=2e-5 \
    data.train_files="$out/data/prompts.parquet" data.val_files="$out/data/test.parquet" \
    data.train_batch_size=64 data.max_prompt_length=32 data.max_response_length=64 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true actor_rollout_ref.rollout.val_kwargs.temperature=1 \
    trainer.total_training_steps="$ppo_steps" trainer.test_freq=8 trainer.default_local_dir="$out/ppo" "$@"

python3 "$here/report.py" "$out"
