#!/usr/bin/env bash
# A curriculum: one epoch of sums, then one of differences. Stages are values of a field that the rows have.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
data=${DATA:-data/arithmetic}
[ -e "$data/train.parquet" ] || python3 "$root/examples/make_arithmetic.py" "$data"

burnish ppo \
    algorithm.adv_estimator=grpo \
    data.curriculum.key=extra_info.op \
    'data.curriculum.stages=["+","-"]' \
    trainer.total_epochs=2 \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=16 \
    data.max_prompt_length=32 \
    data.max_response_length=64 \
    actor_rollout_ref.model.path="$root/burnish/models/nano" \
    actor_rollout_ref.actor.optim.lr=2e-5 \
    trainer.experiment_name=curriculum \
    "$@"
