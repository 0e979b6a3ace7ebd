#!/usr/bin/env bash
# GDPO: the parts of the reward in parts.py, each compared within its group by itself, then weighed and added up.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    algorithm.adv_estimator=gdpo \
    'algorithm.gdpo_reward_keys=[right,worked]' \
    'algorithm.gdpo_reward_weights=[1.0,0.2]' \
    custom_reward_function.path="$here/parts.py" \
    trainer.experiment_name=named_rewards \
    "$@"
