#!/usr/bin/env bash
# GRPO that makes its own harder questions: up to half of each batch are sums that harder.py made out of solved ones.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    custom_reward_function.path="$here/harder.py" \
    data.augment.enable=true \
    data.augment.share=0.5 \
    trainer.total_training_steps=20 \
    trainer.experiment_name=harder_sums \
    "$@"
