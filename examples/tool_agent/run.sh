#!/usr/bin/env bash
# GRPO with the tool agent: products of three-digit numbers, and a calculator that may be called.
# Further keys may follow: examples/tool_agent/run.sh actor_rollout_ref.rollout.multi_turn.max_tool_calls=1
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
data=${DATA:-data/calculator}
[ -e "$data/train.parquet" ] ||
    burnish data make calculator --seed 1 --train-size 4096 --test-size 256 --out "$data"

burnish ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.rollout.n=8 \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=16 \
    data.max_prompt_length=40 \
    data.max_response_length=96 \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \
    actor_rollout_ref.model.path="$root/burnish/models/nano_agent" \
    actor_rollout_ref.actor.optim.lr=1e-4 \
    trainer.total_training_steps=60 \
    trainer.test_freq=10 \
    trainer.experiment_name=tool_agent \
    "$@"
