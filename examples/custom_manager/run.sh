#!/usr/bin/env bash
# GRPO with the reward manager in shared_credit.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    reward_model.reward_manager="$here/shared_credit.py:SharedCredit" \
    trainer.experiment_name=custom_manager \
    "$@"
