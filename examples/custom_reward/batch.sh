#!/usr/bin/env bash
# GRPO with a reward that looks at the whole batch: the function in shortest.py takes lists, which the manager batch gives.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    custom_reward_function.path="$here/shortest.py" \
    reward_model.reward_manager=batch \
    trainer.experiment_name=batch_reward \
    "$@"
