#!/usr/bin/env bash
# Training across two Ray nodes on one machine: each has its own network namespace, with its own address and host
# name, and all that the two have in common is a virtual cable and the file system. So what goes over the network of a
# cluster goes over a network here.
#
#     examples/cluster/two_nodes.sh [--compare] [--lose-node] [keys of burnish ppo …]
#
#     --compare    train in one process too, and compare the metrics of the two runs
#     --lose-node  end the second node after the first checkpoint, and start it again a little later: the run must continue
#
# The commands are those of a real cluster (docs/cluster.md); only `on`, which runs them in a namespace, is not. Needs
# root, `ip` (iproute2), and an activated virtual environment. Whatever it started is gone when it ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
data=${DATA:-data/arithmetic}
out=${OUT:-outputs/two_nodes}
back=${BACK_AFTER:-5} # seconds that a lost node is away; "never" for one that stays away

compare=false lose=false loser=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --compare) compare=true ;;
    --lose-node) lose=true ;;
    *) echo "two_nodes.sh: there is no option $1; the first lines of the script tell all" >&2 && exit 2 ;;
    esac
    shift
done

say() { echo "$(date +%T) $*"; }
fail() { echo "two_nodes.sh: $*" >&2 && exit 1; }
[ "$(id -u)" = 0 ] || fail "network namespaces need root; run it with sudo"
for program in ip unshare setsid ray burnish; do
    type -P "$program" >/dev/null || fail "there is no \`$program\` in PATH; it needs iproute2, util-linux and burnish[ray]"
done

head=burnish-$$-head second=burnish-$$-second # names of this run only: several may run at the same time
head_ip=10.77.0.1 second_ip=10.77.0.2         # seen by nobody but these two
scratch=$(mktemp -d /tmp/two_nodes.XXXXXX)    # short: Ray's sockets are under it

in_namespace() { ip netns pids "$1" 2>/dev/null || true; }

end_node() { # whatever runs in the namespace and nothing else: `ray stop` would end every Ray of the machine
    local node=$1 pids
    for _ in 1 2 3 4 5; do
        pids=$(in_namespace "$node")
        [ -n "$pids" ] || return 0
        kill -KILL $pids 2>/dev/null || true
        sleep 0.2
    done
}

cleanup() {
    trap - EXIT INT TERM
    [ -z "$loser" ] || kill "$loser" 2>/dev/null || true
    for node in "$second" "$head"; do
        end_node "$node"
        ip netns delete "$node" 2>/dev/null || true # the cable goes with it
    done
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- two hosts ---
ip netns add "$head" 2>/dev/null || fail "network namespaces cannot be made here; a container needs CAP_SYS_ADMIN for it"
ip netns add "$second"
ip link add net0 netns "$head" type veth peer name net0 netns "$second" || fail "no virtual cable (veth) can be made here"
for node in "$head" "$second"; do
    address=$([ "$node" = "$head" ] && echo "$head_ip" || echo "$second_ip")
    ip -n "$node" addr add "$address/24" dev net0
    ip -n "$node" link set lo up
    ip -n "$node" link set net0 up
done

on() { # on NODE command …: as on a host of that name
    local node=$1
    shift
    ip netns exec "$node" unshare --uts sh -c 'hostname "$0" && exec "$@"' "${node##*-}" "$@"
}

# --- one Ray over both ---
# All nodes and the run itself need the same token, by this file or by ~/.ray/auth_token: without it a node is refused.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$scratch/token RAY_USAGE_STATS_ENABLED=0
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
small=(--num-cpus 2 --object-store-memory 150000000 --disable-usage-stats)

start_node() { # start_node NAME command …: its talk is shown only if it fails
    say "starting Ray on the node $1"
    "${@:2}" >"$scratch/start.log" 2>&1 || { cat "$scratch/start.log" >&2 && fail "Ray could not be started on $1"; }
}
start_head() {
    start_node head on "$head" ray start --head --node-ip-address "$head_ip" --port 6379 --include-dashboard false \
        --temp-dir "$scratch/1" "${small[@]}"
}
start_second() {
    start_node second on "$second" ray start --address "$head_ip:6379" --node-ip-address "$second_ip" \
        --temp-dir "$scratch/2" "${small[@]}"
}
start_head
start_second

# --- training ---
[ -e "$data/train.parquet" ] || python3 "$root/examples/make_arithmetic.py" "$data"
job=(
    data.train_files="$data/train.parquet"
    data.train_batch_size=6
    data.max_prompt_length=32
    data.max_response_length=16
    actor_rollout_ref.model.path="$root/burnish/models/nano"
    actor_rollout_ref.actor.ppo_mini_batch_size=6
    actor_rollout_ref.actor.optim.lr=1e-4
    trainer.total_training_steps=3
    trainer.device=cpu
    trainer.logger=jsonl
)
across=(ray_init.address="$head_ip:6379" trainer.nnodes=2 trainer.n_gpus_per_node=1 trainer.default_local_dir="$out/cluster")
rm -rf "$out/cluster" "$out/one"

lose_second() { # after the first checkpoint; without informing the run
    until compgen -G "$out/cluster/global_step_*" >/dev/null; do sleep 0.1; done
    say "ending the node second" && end_node "$second"
    [ "$back" != never ] || return 0
    sleep "$back"
    start_second
}
if "$lose"; then
    job+=(trainer.save_freq=1)
    lose_second &
    loser=$!
fi
on "$head" burnish ppo "${job[@]}" "${across[@]}" "$@"
if "$lose"; then
    wait "$loser" || fail "the second node could not be lost and started again"
    grep -q '"restart"' "$out/cluster/events.jsonl" || fail "the run ended before it could lose a node; give it more steps"
fi
if "$compare"; then
    burnish ppo "${job[@]}" trainer.default_local_dir="$out/one" "$@" \
        trainer.executor=local trainer.nnodes=1 trainer.n_gpus_per_node=1
    python3 "$here/same_metrics.py" "$out/one" "$out/cluster"
fi
