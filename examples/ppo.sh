#!/usr/bin/env bash
# PPO with a critic: generalised advantage estimation, two passes over each batch, and a KL penalty in the reward whose
# coefficient follows a target. The critic starts from the policy's weights with a new head, and learns alone at first.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
data=${DATA:-data/arithmetic}
[ -e "$data/train.parquet" ] || python3 "$root/examples/make_arithmetic.py" "$data"

burnish ppo \
    algorithm.adv_estimator=gae \
    algorithm.lam=0.95 \
    algorithm.kl_ctrl.type=adaptive \
    algorithm.kl_ctrl.kl_coef=0.001 \
    critic.optim.lr=1e-4 \
    trainer.critic_warmup=1 \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=64 \
    data.max_prompt_length=32 \
    data.max_response_length=64 \
    actor_rollout_ref.model.path="$root/burnish/models/nano" \
    actor_rollout_ref.actor.optim.lr=2e-5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_epochs=2 \
    trainer.experiment_name=ppo \
    "$@"
