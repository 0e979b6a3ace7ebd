"""What the controller adds to a step, by workers and batch size: `python benchmarks/controller.py`, `--help` for sizes.

Makes steps as the training loop does, through the same worker groups, dispatch and object store, on real Ray processes
of this machine; but workers only sleep, and answer with columns of the right shape. What a step takes longer than the
sleeping is the controller's: splitting, sending and joining batches, and waiting for the last worker. Agent loops have
as many processes as the policy, at most 8, which is the default. Prints tables and one JSON line to keep; progress goes
to stderr. Fails where a column of a batch was put into the object store more than once in a step.

    added           milliseconds that a step takes longer than its simulated compute; medians, the first is not counted
    CPU             milliseconds of CPU time of the controller's process in that, all its threads together
    puts, MB put    what the controller put into the object store in a step; `columns` are tensors, the rest is pickled
    MB got          what came back

The first lines are the seconds until processes are started, by executor.

Lines, a + b · workers + c · MB (put and got), are fitted to added and to CPU. Workers share the cores of this machine,
where a cluster has some for each, so the b of added is too large here, and the CPU shows more. The second table has
the calls alone: as many as for 1,000 workers, sent to a few processes that answer at once, with the controller's own
code for sending and waiting. Their CPU time is the controller's and would be the same on a cluster; the wait is longer
here, for those who answer need the same cores. What both predict for a step of 1,000 workers, and the largest part, are
the last lines. What they leave out: a column goes over the network once for each node, at the speed of the controller's
network.
"""

import argparse
import json
import logging
import os
import pickle
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import torch

from burnish.config.placement import MOST_AGENT_WORKERS
from burnish.config.trainer import RayInitConfig
from burnish.controller import ClassWithInitArgs, Dispatch, Future, ResourcePool, Worker, host, register
from burnish.controller.cluster import Cluster, Process
from burnish.controller.group import BoundMethod
from burnish.controller.hosts import Hosts
from burnish.controller.processes import start
from burnish.controller.ray import AT_ONCE, RayLine, connect
from burnish.controller.remote import RemoteWorkerGroup
from burnish.controller.wire import pack
from burnish.controller.worker import WorkerPlace
from burnish.data.dataset import collate
from burnish.data.files import Row
from burnish.errors import BurnishError
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rollout.base import Sampling
from burnish.trainer.groups import Passes, RemoteRollouts
from burnish.workers.rollouts import RoundSettings
from burnish.workers.trajectories import BEGUN_ROLLOUTS, GROUPED_ROLLOUTS

SLEEPS = 7  # calls of a step that compute: new weights, generation, three passes, two updates
WITH_BATCH, WITHOUT = 5, 3  # calls of a step on all workers: passes and updates; new weights and twice the counters
PASSES = ("compute_log_prob", "compute_ref_log_prob", "compute_values")
UPDATES = ("update_critic", "update_actor")
SHOWN = {
    "update_weights": ("update_weights",), "engine_stats": ("engine_stats",),
    "generate": ("begin_sequences", "finish_sequences"),
    "passes": PASSES, "updates": UPDATES,
}  # fmt: skip
CREDIT = ("token_level_scores", "token_level_rewards", "advantages", "returns")  # what the controller itself adds
COUNTERS = ("requests", "generated_tokens", "steps", "prefill_tokens", "shared_tokens", "prefix_hit_tokens", "busy_s")
SAMPLES = 8  # rows of a prompt
FAR = 1000  # workers that are predicted


# --- workers that only sleep ---


class Models(Worker):
    """The calls of policy, reference and critic, which share processes."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_weights(self, version: int) -> None:
        time.sleep(self.seconds)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def engine_stats(self) -> dict[str, float]:
        return dict.fromkeys(COUNTERS, 1.0)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_log_prob(self, data: DataProto, outputs: tuple[str, ...] = ()) -> DataProto:
        return self._columns(data, "old_log_probs", "entropys")

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return self._columns(data, "ref_log_prob")

    @register(dispatch_mode=Dispatch.TOGETHER)
    def compute_values(self, data: DataProto) -> DataProto:
        return self._columns(data, "values")

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_critic(self, data: DataProto, step: int) -> dict[str, list[float]]:
        time.sleep(self.seconds)
        return {f"critic/{i}": [0.0] * 4 for i in range(10)}

    @register(dispatch_mode=Dispatch.TOGETHER)
    def update_actor(self, data: DataProto, step: int) -> dict[str, list[float]]:
        time.sleep(self.seconds)
        return {f"actor/{i}": [0.0] * 4 for i in range(20)}

    def _columns(self, data: DataProto, *names: str) -> DataProto:
        time.sleep(self.seconds)
        return DataProto.from_dict({name: torch.zeros(data.batch["responses"].shape) for name in names})


class Agents(Worker):
    """The call of agent loops. What it answers is made before the first step, as `prepare` is asked."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def connect(self, peers: list[Any]) -> None: ...

    @register(dispatch_mode=GROUPED_ROLLOUTS)
    def prepare(self, rows: list[Row], width: int, total: int) -> None:
        self.answer = answered(len(rows), width)

    @register(dispatch_mode=GROUPED_ROLLOUTS)
    def begin_sequences(self, rows: list[Row], settings: RoundSettings, total: int | None = None) -> None: ...

    @register(dispatch_mode=BEGUN_ROLLOUTS)
    def finish_sequences(self, number: int) -> DataProto:
        time.sleep(self.seconds)
        return self.answer


def prompts_of(rows: int) -> list[Row]:
    """What is drawn for a step."""
    messages = [{"role": "user", "content": "What is the sum of all numbers that are asked about here? " * 4}]
    return [
        {
            "uid": row // SAMPLES,
            "sample": row % SAMPLES,
            "raw_prompt": messages,
            "data_source": "benchmark",
            "reward_model": {"style": "rule", "ground_truth": str(row)},
            "extra_info": {"index": row, "split": "train"},
        }
        for row in range(rows)
    ]


def answered(rows: int, width: int) -> DataProto:
    """What agent loops give for a part of the prompts: prompts of a quarter of the width of responses."""
    prompts, responses = torch.ones(rows, width // 4).long(), torch.ones(rows, width).long()
    whole = torch.cat([prompts, responses], dim=-1)
    tensors = {
        "prompts": prompts, "responses": responses, "input_ids": whole, "attention_mask": torch.ones_like(whole),
        "position_ids": whole.cumsum(-1) - 1, "response_mask": torch.ones_like(responses),
        "rollout_log_probs": torch.zeros(rows, width),
    }  # fmt: skip
    columns: dict[str, list[Any]] = {
        "score_result": [ScoreResult(1.0, data_source="benchmark") for _ in range(rows)],
        "num_turns": [1] * rows,
        "num_tool_calls": [0] * rows,
        "truncated": [False] * rows,
        "finish_reason": ["stop"] * rows,
        "policy_version": [0] * rows,
        "agent_metrics": [{"num_tool_calls": 0, "generate_s": 1.0} for _ in range(rows)],
        "new_prompts": [{} for _ in range(rows)],
    }
    return DataProto.from_dict(tensors, columns)


# --- watching ---


class Watch:
    """Seconds in calls by method, and what went into the object store and came back."""

    def __init__(self, cluster: Cluster) -> None:
        self.reset()
        put, unpack = cluster.store, host.unpack

        def counted_put(value: Any) -> Any:
            self.puts += 1
            self.put_bytes += len(value)
            if value.flags.writeable:  # the memory of a tensor, which lives until the end of the step
                self.columns += 1
                self.twice += (value.ctypes.data, len(value)) in self.seen
                self.seen.add((value.ctypes.data, len(value)))
            return put(value)

        def counted_unpack(skeleton: bytes, memory: list[np.ndarray], *rest: Any) -> Any:  # here, only of answers
            self.got_bytes += len(skeleton) + sum(map(len, memory))
            return unpack(skeleton, memory, *rest)

        cluster.store, host.unpack = counted_put, counted_unpack  # type: ignore[assignment, method-assign]

    def reset(self) -> None:
        self.puts = self.columns = self.twice = self.put_bytes = self.got_bytes = 0
        self.seen: set[tuple[int, int]] = set()
        self.seconds: dict[str, float] = defaultdict(float)


class Watched:
    """A worker group whose calls are timed."""

    def __init__(self, group: RemoteWorkerGroup, watch: Watch):
        self.group, self.watch = group, watch

    def __getattr__(self, name: str) -> Any:
        there = getattr(self.group, name)
        return WatchedMethod(there, name, self.watch) if isinstance(there, BoundMethod) else there


class WatchedMethod:
    def __init__(self, method: BoundMethod, name: str, watch: Watch):
        self.method, self.name, self.watch = method, name, watch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.start(*args, **kwargs).get()

    def start(self, *args: Any, **kwargs: Any) -> Future:
        begin = time.perf_counter()
        future = self.method.start(*args, **kwargs)
        self.watch.seconds[self.name] += time.perf_counter() - begin
        return WatchedFuture(future, self.name, self.watch)


class WatchedFuture:
    def __init__(self, future: Future, name: str, watch: Watch):
        self.future, self.name, self.watch = future, name, watch

    def get(self, timeout: float | None = None) -> Any:
        begin = time.perf_counter()
        try:
            return self.future.get(timeout)
        finally:
            self.watch.seconds[self.name] += time.perf_counter() - begin


# --- steps ---


def measure_steps(
    hosts: tuple[Hosts, Hosts], watch: Watch, rows: int, width: int, seconds: float, steps: int
) -> dict[str, Any]:
    """The results of a step over these processes; medians over the steps after the first."""
    group_class: Any = RemoteWorkerGroup.of(hosts[0].cluster)
    models = group_class.on(hosts[0], {"actor_rollout_ref": ClassWithInitArgs(Models, seconds)})["actor_rollout_ref"]
    agents = group_class.on(hosts[1], {"agent_loop": ClassWithInitArgs(Agents, seconds)})["agent_loop"]
    agents.prepare(prompts_of(rows), width)
    policy = Watched(models, watch)
    rollouts = RemoteRollouts(policy, Watched(agents, watch))  # type: ignore[arg-type]
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(steps + 1):
        prompts, credit = prompts_of(rows), {name: torch.zeros(rows, width) for name in CREDIT}
        watch.reset()
        begin, cpu = time.perf_counter(), time.process_time()
        sent = one_step(policy, rollouts, prompts, credit, number)
        added, cpu = time.perf_counter() - begin - SLEEPS * seconds, time.process_time() - cpu
        if not number:
            continue
        found["added"].append(added)
        found["cpu"].append(cpu)
        for shown, names in SHOWN.items():
            slept = 0.0 if shown == "engine_stats" else seconds * len(names)
            found[shown].append(sum(watch.seconds[name] for name in names) - slept)
        found["elsewhere"].append(added - sum(found[shown][-1] for shown in SHOWN))
        for name in ("puts", "columns", "put_bytes", "got_bytes"):
            found[name].append(getattr(watch, name))
        if watch.twice:
            raise SystemExit(f"{watch.twice} of {len(sent.batch.keys())} columns were put into the object store twice")
    known = {"workers": len(hosts[0].processes), "agents": len(hosts[1].processes), "rows": rows, "tokens": width}
    return known | {name: statistics.median(values) for name, values in found.items()}


def one_step(
    policy: Any, rollouts: RemoteRollouts, prompts: list[Row], credit: dict[str, torch.Tensor], number: int
) -> DataProto:
    """As `PPOTrainer.fit` makes it, of which all that needs workers; returns what was trained on."""
    rollouts.update_weights(number)
    rollouts.begin_sequences(prompts, RoundSettings(number, Sampling(), "train", True))
    batch = collate(prompts).union(rollouts.finish_sequences(number))
    passes = Passes(batch, {})
    passes.begin("old_log_prob", policy.compute_log_prob.start, ())
    passes.begin("ref", policy.compute_ref_log_prob.start)
    passes.begin("values", policy.compute_values.start)
    batch = passes.join(batch)
    batch.batch.update(credit)
    sent = batch.select(non_tensor_batch_keys=["uid"])
    policy.update_critic(sent, number)
    policy.update_actor(sent, number)
    return sent


# --- calls alone ---


class Carried:
    """Becomes an answer where it arrives: the process that sends it has no need of torch."""

    def __init__(self, pickled: bytes):
        self.pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.pickled,)


class Light:
    """Stands for a worker process; answers at once."""

    def __init__(self, answer: Carried):
        self.answer = answer

    async def run(self, number: int, what: str, job: str, parts: list[Any], answers: bool) -> Any:
        return self.answer


def measure_calls(hosts: Hosts, actors: list[Any], width: int, batch: DataProto, repeat: int = 5) -> dict[str, float]:
    """Seconds that the controller takes to send a call to so many workers, and then to wait for all answers."""
    places = [Process(RayLine(actors[rank % len(actors)]), WorkerPlace(rank, width)) for rank in range(width)]
    group = RemoteWorkerGroup.of(hosts.cluster)("light", Models, Hosts("light", places, hosts.cluster))
    methods: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "alone": (group.update_weights, (0,)), "with batch": (group.update_actor, (batch, 0)),
    }  # fmt: skip
    results: dict[str, float] = {"workers": width}
    for name, (method, arguments) in methods.items():
        method(*arguments)
        found = []
        for _ in range(repeat):
            begin, cpu = time.perf_counter(), time.process_time()
            future = method.start(*arguments)
            middle = time.perf_counter()
            future.get()
            found.append((middle - begin, time.perf_counter() - middle, time.process_time() - cpu))
        submit, wait, used = (statistics.median(values) for values in zip(*found, strict=True))
        results |= {f"{name}: send": submit, f"{name}: wait": wait, f"{name}: cpu": used}
    return results


# --- what follows ---


def fitted(runs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """a + b · workers + c · MB, by least squares."""
    table = np.array([[1.0, run["workers"], megabytes(run)] for run in runs])
    found = np.array([run[name] for run in runs])
    solution = np.linalg.lstsq(table, found, rcond=None)[0]
    error = float(np.abs(found - table @ solution).max())
    return {**dict(zip(("a", "b", "c"), solution.tolist(), strict=True)), "largest error": error}


def megabytes(run: dict[str, Any]) -> float:
    return float(run["put_bytes"] + run["got_bytes"]) / 1e6


def predicted(
    added: dict[str, float], cpu: dict[str, float], calls: dict[str, float], megabytes: float
) -> dict[str, float]:
    """Seconds that the controller adds to a step of FAR workers: by the lines, and by calls as they were measured."""
    sending, waiting, used = (
        WITHOUT * calls[f"alone: {part}"] + WITH_BATCH * calls[f"with batch: {part}"]
        for part in ("send", "wait", "cpu")
    )
    columns = max(added["c"], 0.0) * megabytes
    return {
        "line of added": added["a"] + added["b"] * FAR + added["c"] * megabytes,
        "line of CPU": cpu["a"] + cpu["b"] * FAR + cpu["c"] * megabytes,
        "sending calls": sending,
        "waiting for answers": waiting,
        "CPU of both": used,
        "moving columns": columns,
        "calls and columns": sending + waiting + columns + max(added["a"], 0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="of the policy %(default)s")
    parser.add_argument(
        "--batches",
        nargs="+",
        default=["64x256", "256x1024", "512x2048"],
        help="rows x tokens of responses %(default)s",
    )
    parser.add_argument("--steps", type=int, default=5, help="that are counted [%(default)s]")
    parser.add_argument("--seconds", type=float, default=0.1, help="that each call sleeps [%(default)s]")
    parser.add_argument("--light", type=int, default=32, help="processes that answer at once [%(default)s]")
    parser.add_argument(
        "--calls", type=int, nargs="+", default=[1, 8, 32, 128, 512], help=f"at once, besides {FAR} %(default)s"
    )
    options = parser.parse_args()
    sizes = [tuple(map(int, size.split("x"))) for size in options.batches if size.replace("x", "").isdigit()]
    counts = (*options.workers, *options.calls, options.steps, options.light, *(n for size in sizes for n in size))
    if min(counts) < 1 or any(len(size) != 2 for size in sizes) or len(sizes) < len(options.batches):
        parser.error("all sizes must be at least 1, and a batch is rows x tokens, such as 64x256")
    if any(rows % SAMPLES or tokens < 4 for rows, tokens in sizes):
        parser.error(f"rows must be a multiple of {SAMPLES}, the samples of a prompt, and tokens at least 4")
    logging.getLogger("burnish").setLevel(logging.WARNING)
    processes = 2 * max(options.workers)  # of both pools; Ray warns where it has to start many more than it knows CPUs
    limits: dict[str, Any] = {"logs": None, "deadline_s": 300.0, "start_deadline_s": 300.0}
    ready = {"processes": ready_after(lambda: start(**limits), max(options.workers))}
    ready["ray"] = ready_after(lambda: connect(RayInitConfig(), processes=processes, **limits), max(options.workers))
    group_class = connect(RayInitConfig(), processes=processes, **limits)
    try:
        report(measure(options, sizes, group_class) | {"ready": ready})
    finally:
        group_class.disconnect()


def ready_after(begin: Callable[[], type[RemoteWorkerGroup]], count: int) -> float:
    """Seconds until so many processes of an executor have answered, in a process group where there are several."""
    began = time.perf_counter()
    group_class = begin()
    Hosts.start(group_class.cluster, ResourcePool([count], "ready", "cpu"))
    seconds = time.perf_counter() - began
    group_class.disconnect()
    progress(f"  {count} processes after {seconds:.1f} s")
    return seconds


def measure(
    options: argparse.Namespace, sizes: list[tuple[int, ...]], group_class: type[RemoteWorkerGroup]
) -> dict[str, Any]:
    """Steps of all sizes, then calls of all widths; processes are started once."""
    cluster, watch, most = group_class.cluster, Watch(group_class.cluster), max(options.workers)
    progress(f"starting {most} and {min(most, MOST_AGENT_WORKERS)} processes")
    pools = [
        Hosts.start(cluster, ResourcePool([count], name, "cpu"))
        for name, count in (("models", most), ("agents", min(most, MOST_AGENT_WORKERS)))
    ]
    runs = []
    for workers in options.workers:
        part = tuple(first(pool, min(workers, len(pool.processes))) for pool in pools)
        for rows, tokens in sizes:
            assert len(part) == 2
            runs.append(measure_steps(part, watch, rows, tokens, options.seconds, options.steps))
            progress(f"  {workers} workers, {rows} × {tokens} tokens: {runs[-1]['added'] * 1e3:.1f} ms")
    for pool in pools:
        pool.end("measured")
    progress(f"starting {options.light} light processes")
    answer = Carried(pickle.dumps(host.WorkerReply(pack({}).skeleton)))
    light = ray.remote(Light).options(num_cpus=0, max_concurrency=AT_ONCE)
    actors: list[Any] = [light.remote(answer) for _ in range(options.light)]
    ray.get([actor.run.remote(0, "", "", [], True) for actor in actors])
    batch = collate(prompts_of(SAMPLES * 8)).union(answered(SAMPLES * 8, 256)).select(non_tensor_batch_keys=["uid"])
    batch.batch.update({f"column_{i}": torch.zeros(SAMPLES * 8, 256) for i in range(8)})  # as many as an update gets
    calls = [measure_calls(pools[0], actors, width, batch) for width in sorted({*options.calls, FAR})]
    lines, largest = {name: fitted(runs, name) for name in ("added", "cpu")}, max(map(megabytes, runs))
    facts = {"cores": os.cpu_count(), "ray": ray.__version__, "torch": torch.__version__, "seconds": options.seconds}
    return {
        **facts, "steps": runs, "lines": lines, "calls": calls, "MB": largest,
        "predicted": predicted(lines["added"], lines["cpu"], calls[-1], largest),
    }  # fmt: skip


def first(pool: Hosts, count: int) -> Hosts:
    """A smaller pool of the first processes of another."""
    for rank, process in enumerate(pool.processes[:count]):
        process.place = replace(process.place, rank=rank, world_size=count, local_world_size=count)
    return Hosts(pool.name, pool.processes[:count], pool.cluster)


def report(results: dict[str, Any]) -> None:
    shown = [*SHOWN, "elsewhere"]
    most = max(run["workers"] for run in results["steps"])
    for executor, seconds in results["ready"].items():
        print(f"trainer.executor={executor}: {most} processes are ready after {seconds:.1f} s")
    print(f"a step, ms added to {SLEEPS} × {results['seconds']:g} s of simulated compute, on {results['cores']} cores")
    print(f"{'workers':>8}{'rows × tokens':>15}{'added':>8}" + "".join(f"{name:>15}" for name in shown), end="")
    print(f"{'CPU':>8}{'puts':>6}{'columns':>9}{'MB put':>8}{'MB got':>8}")
    for run in results["steps"]:
        print(f"{run['workers']:>8}{run['rows']:>8} ×{run['tokens']:>5}{run['added'] * 1e3:>8.1f}", end="")
        print("".join(f"{run[name] * 1e3:>15.1f}" for name in shown) + f"{run['cpu'] * 1e3:>8.1f}", end="")
        print(f"{run['puts']:>6.0f}{run['columns']:>9.0f}{run['put_bytes'] / 1e6:>8.1f}{run['got_bytes'] / 1e6:>8.1f}")
    for name, line in results["lines"].items():
        a, b, c, error = (line[part] * 1e3 for part in ("a", "b", "c", "largest error"))
        print(f"{name} = {a:.1f} ms + {b:.2f} ms · workers + {c:.2f} ms · MB, off by at most {error:.1f} ms")
    names = [name for name in results["calls"][0] if name != "workers"]
    print("\none call of so many workers that answer at once, ms")
    print(f"{'workers':>8}" + "".join(f"{name:>18}" for name in names))
    for calls in results["calls"]:
        print(f"{calls['workers']:>8}" + "".join(f"{calls[name] * 1e3:>18.2f}" for name in names))
    guess = results["predicted"]
    print(f"\n{FAR} workers, {results['MB']:.0f} MB a step: seconds added")
    for name, seconds in guess.items():
        print(f"{name:>22}{seconds:>8.2f}")
    each, fan_out = (
        guess["CPU of both"] / FAR / (WITH_BATCH + WITHOUT),
        guess["sending calls"] + guess["waiting for answers"],
    )
    if fan_out > guess["moving columns"]:
        print(f"first bottleneck: calls, which the controller makes one by one, {each * 1e3:.2f} ms of CPU each")
    else:
        print("first bottleneck: columns, which the controller copies into and out of the object store")
    print(json.dumps(results))


def progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except BurnishError as error:
        raise SystemExit(str(error)) from error
