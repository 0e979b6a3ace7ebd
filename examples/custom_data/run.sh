#!/usr/bin/env bash
# GRPO on rows and in an order that are made in my_data.py; the files are handed to the dataset class.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../grpo.sh" \
    data.custom_cls.path="$here/my_data.py" \
    data.custom_cls.name=Computed \
    data.sampler.class_path="$here/my_data.py" \
    data.sampler.class_name=SmallNumbersFirst \
    data.val_files=null \
    trainer.experiment_name=custom_data \
    "$@"
