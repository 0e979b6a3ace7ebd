#!/usr/bin/env bash
# GRPO with a class as the reward function: judge.py keeps what it has judged before.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    custom_reward_function.path="$here/judge.py" \
    custom_reward_function.name=Judge \
    custom_reward_function.reward_kwargs.bonus=0.2 \
    trainer.experiment_name=judge_reward \
    "$@"
