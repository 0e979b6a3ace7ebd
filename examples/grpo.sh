#!/usr/bin/env bash
# GRPO: eight answers to each question, each judged by how it compares with the other seven.
# Further keys may follow: examples/grpo.sh trainer.total_training_steps=10
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
    actor_rollout_ref.actor.optim.lr=2e-5 \
    trainer.test_freq=10 \
    trainer.experiment_name=grpo \
    "$@"
