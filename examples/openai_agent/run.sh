#!/usr/bin/env bash
# GRPO on the calls of a plain program, agent.py, which uses the OpenAI client (pip install -c constraints.txt openai).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/loops.yaml" \
    actor_rollout_ref.rollout.agent.default_agent_loop=openai_agent \
    data.max_response_length=128 \
    trainer.experiment_name=openai_agent \
    "$@"
