#!/usr/bin/env bash
# DAPO: GRPO on groups that have something to tell apart. Groups whose answers are all right or all wrong are dropped and
# others drawn, unlikely tokens may gain more at a time, and answers that come near the length limit lose some reward.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/grpo.sh" \
    algorithm.filter_groups.enable=true \
    algorithm.filter_groups.max_num_gen_batches=4 \
    data.gen_batch_size=32 \
    algorithm.overlong_buffer.enable=true \
    algorithm.overlong_buffer.len=16 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    trainer.experiment_name=dapo \
    "$@"
