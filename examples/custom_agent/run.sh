#!/usr/bin/env bash
# GRPO with the agent loop in second_try.py. A row may also choose its loop, in a column agent_name.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/loops.yaml" \
    actor_rollout_ref.rollout.agent.default_agent_loop=second_try \
    data.max_response_length=128 \
    trainer.experiment_name=custom_agent \
    "$@"
