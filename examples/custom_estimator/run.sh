#!/usr/bin/env bash
# GRPO's data and sampling with the estimator in best_of_group.py, named by its import path module:function.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$here/../grpo.sh" \
    algorithm.adv_estimator=best_of_group:best_of_group \
    trainer.experiment_name=custom_estimator \
    "$@"
