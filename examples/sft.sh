#!/usr/bin/env bash
# Supervised fine-tuning on conversations: a `messages` column, loss on the assistant's tokens only.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
data=${DATA:-data/arithmetic}
[ -e "$data/sft.parquet" ] || python3 "$root/examples/make_arithmetic.py" "$data"

burnish sft \
    data.train_files="$data/sft.parquet" \
    data.max_length=128 \
    data.train_batch_size=32 \
    model.path="$root/burnish/models/nano" \
    optim.lr=3e-4 \
    optim.lr_warmup_steps=5 \
    optim.lr_scheduler_type=cosine \
    trainer.experiment_name=sft \
    "$@"
