#!/usr/bin/env bash
# GRPO with the reward function in my_reward.py; one of its numbers is set here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    custom_reward_function.path="$here/my_reward.py" \
    custom_reward_function.reward_kwargs.bonus=0.2 \
    trainer.experiment_name=custom_reward \
    "$@"
