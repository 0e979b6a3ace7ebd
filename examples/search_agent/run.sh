#!/usr/bin/env bash
# GRPO with the search agent: a world of facts, an index of them, and the retrieval server next to the run.
# Further keys may follow: examples/search_agent/run.sh max_turns=1
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
data=${DATA:-data/facts} port=${PORT:-8000}
[ -e "$data/train.parquet" ] ||
    burnish data make facts --seed 1 --train-size 768 --test-size 256 --corpus "$data/corpus.jsonl" --out "$data"
[ -e "$data/index" ] || burnish retriever index "$data/corpus.jsonl" --out "$data/index"

burnish retriever serve "$data/index" --port "$port" &
server=$!
trap 'kill "$server"; wait "$server" || true' EXIT
curl --silent --fail --retry 60 --retry-delay 1 --retry-connrefused --output /dev/null "http://127.0.0.1:$port/health"
kill -0 "$server"  # or it is another server that answers

burnish ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.rollout.n=8 \
    data.train_files="$data/train.parquet" \
    data.val_files="$data/test.parquet" \
    data.train_batch_size=16 \
    data.max_prompt_length=32 \
    data.max_response_length=160 \
    data.max_obs_length=64 \
    do_search=true \
    max_turns=2 \
    retriever.url="http://127.0.0.1:$port/retrieve" \
    retriever.topk=2 \
    actor_rollout_ref.model.path="$root/burnish/models/nano_agent" \
    actor_rollout_ref.actor.optim.lr=1e-4 \
    trainer.total_training_steps=60 \
    trainer.test_freq=10 \
    trainer.experiment_name=search_agent \
    "$@"
