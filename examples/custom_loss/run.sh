#!/usr/bin/env bash
# GRPO's data and sampling with the loss in reinforce.py, named by its import path module:function.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$here/../grpo.sh" \
    actor_rollout_ref.actor.policy_loss.loss_mode=reinforce:reinforce \
    trainer.experiment_name=custom_loss \
    "$@"
