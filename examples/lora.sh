#!/usr/bin/env bash
# GRPO with LoRA: an adapter of rank 16 learns, the weights stay as they are and are the reference of the KL term.
# Further keys may follow: examples/lora.sh trainer.total_training_steps=10
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
data=${DATA:-data/arithmetic}
[ -e "$data/train.parquet" ] || python3 "$root/examples/make_arithmetic.py" "$data"

burnish ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.rollout.n=8 \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=16 \
    data.max_prompt_length=32 \
    data.max_response_length=64 \
    actor_rollout_ref.model.path="$root/burnish/models/nano" \
    actor_rollout_ref.model.lora_rank=16 \
    actor_rollout_ref.model.lora_alpha=32 \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.optim.lr=1e-3 \
    trainer.test_freq=10 \
    trainer.experiment_name=lora \
    "$@"
