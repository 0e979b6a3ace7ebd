#!/usr/bin/env bash
# Two reward functions of parts.py with their weights: the score is their weighted sum, and each has its own curve.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    algorithm.adv_estimator=gdpo \
    custom_reward_function.path="$here/parts.py" \
    custom_reward_function.functions.right.weight=1.0 \
    custom_reward_function.functions.worked.weight=0.2 \
    trainer.experiment_name=named_rewards \
    "$@"
