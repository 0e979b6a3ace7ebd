#!/usr/bin/env bash
#SBATCH --job-name=burnish
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@180
# A run on the nodes of a Slurm job: `sbatch [options] examples/cluster/slurm.sh [keys of burnish ppo …]`.
#
#     sbatch --nodes=4 examples/cluster/slurm.sh data.train_files=train.parquet trainer.save_freq=20 …
#
# Starts Ray on every node, waits until all have joined, and trains from the first. Needs a folder that all nodes see:
# the one the job is submitted from, with the environment in VENV (.venv unless it is set); and a home directory that
# all nodes see, for Ray's token. Submitted again, it resumes from the newest checkpoint; three minutes before the end
# of its time Slurm ends the run, which says where that is.
#
#     HEAD_IP  the first node's address on the network that training is to use, where it has several
#     GPUS     processes on each node; what Slurm has given unless it is set
set -euo pipefail
fail() { echo "slurm.sh: $*" >&2 && exit 1; }
[ -n "${SLURM_JOB_ID:-}" ] || fail "this is a job for Slurm: sbatch $0"
venv=${VENV:-.venv} nodes=${SLURM_JOB_NUM_NODES:?} port=6379
[ ! -e "$venv/bin/activate" ] || source "$venv/bin/activate"
type -P ray burnish >/dev/null || fail "there is no \`ray\` or \`burnish\` in PATH; set VENV to the environment"
gpus=${GPUS:-${SLURM_GPUS_ON_NODE:?how many processes on each node? set GPUS}}
head_ip=${HEAD_IP:-$(hostname -I | cut -d ' ' -f 1)}

# Every node and the run need the same token; with it nobody else on the network can give Ray work.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
ray get-auth-token --generate >/dev/null

# `--cpu-bind=none`: else all that Ray starts on a node would share the core of the task that started it.
on_nodes() { srun --cpu-bind=none --ntasks-per-node=1 --kill-on-bad-exit=1 "$@" & }
joined() { ray status --address "$head_ip:$port" 2>/dev/null | grep -c '^ 1 node_' || true; }
wait_for() { # wait_for COUNT: nodes in the cluster
    local end=$((SECONDS + 180))
    while [ "$(joined)" -lt "$1" ]; do
        ((SECONDS < end)) || fail "$(joined) of $1 nodes have joined the Ray at $head_ip:$port within three minutes"
        sleep 2
    done
}

on_nodes --nodes=1 --ntasks=1 --nodelist="$(hostname)" \
    ray start --block --head --node-ip-address "$head_ip" --port "$port" --num-gpus "$gpus"
wait_for 1
if ((nodes > 1)); then
    on_nodes --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --exclude="$(hostname)" \
        ray start --block --address "$head_ip:$port" --num-gpus "$gpus"
    wait_for "$nodes"
fi

burnish ppo ray_init.address="$head_ip:$port" trainer.nnodes="$nodes" trainer.n_gpus_per_node="$gpus" "$@" &
run=$! status=0
trap 'kill -TERM "$run" 2>/dev/null || true' TERM # Slurm tells this shell alone; the run then ends as by Ctrl-C
while kill -0 "$run" 2>/dev/null; do # the first wait ends with the signal, the second with the run
    status=0
    wait "$run" || status=$?
done
exit "$status" # and Slurm ends Ray with the job
