"""Whole runs on Ray, as `burnish ppo` makes them: `run(2, *overrides)` has two workers, `run(0, …)` does without Ray.

Starting a worker process takes longer than these runs do. So a module's tests share one Ray, and `run` has worker
processes kept for the runs that come after; `run.with_new_processes` starts others. A run in kept
processes makes all its workers anew and goes to its own working directory: nothing else of an earlier run is left.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from burnish.config.load import load_ppo
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.worker import Worker
from burnish.trainer import setup
from tests.trainer.cluster.struck import StruckWorker
from tests.trainer.conftest import CLOCKS, jsonl

# What differs between one engine and several without being wrong. A prompt is prefilled once on each replica that has
# samples of it, and steps are counted on every replica; each agent worker has a cache of what it has retrieved.
DIFFERS_BY_NATURE = (
    *CLOCKS, "rollout/steps", "rollout/prefill_tokens", "rollout/shared_tokens", "rollout/prefix_hit_tokens",
    "retrieval/", "tools/seconds",
)  # fmt: skip
# Sums in another order: float32 has 7 digits, of which later steps lose some, because Adam divides gradients by their
# own size. What is near 0 is compared as such.
RELATIVE, ABSOLUTE = 2e-4, 2e-6
LONG = [pytest.mark.ray, pytest.mark.slow, pytest.mark.cluster]


class Moved(Worker):
    """Takes a kept process to the working directory of the run that uses it now."""

    def __init__(self, folder: str):
        os.chdir(folder)


class Kept:
    """Worker processes of earlier runs, by how many there are in a pool."""

    def __init__(self) -> None:
        self.free: dict[int, list[Any]] = defaultdict(list)

    def group_of(self, executor: Any) -> Any:
        """What `setup.executor` is while processes are kept."""

        def make(config: Any) -> Any:
            group = executor(config)
            return group if not hasattr(group, "cluster") else self._keeping(group)

        return make

    def _keeping(self, group: Any) -> Any:
        from burnish.controller.ray import Hosts

        kept = self

        class Keeping(group):
            taken: ClassVar[list[Any]] = []

            @classmethod
            def spawn(cls, pool: Any, workers: Any) -> Any:
                free = kept.free[pool.world_size]
                if free:
                    hosts = free.pop()
                    hosts.cluster, hosts.roles, hosts.name = cls.cluster, [], pool.name
                else:
                    hosts = Hosts.start(cls.cluster, pool)
                cls.taken.append(hosts)
                cls.on(hosts, {"moved": ClassWithInitArgs(Moved, os.getcwd())})
                hosts.roles.clear()
                return cls.on(hosts, workers)

            def shutdown(self) -> None:
                """They stay."""

            @classmethod
            def disconnect(cls) -> None:
                for hosts in cls.taken:
                    if not hosts.ended:
                        kept.free[len(hosts.processes)].append(hosts)
                cls.taken = []

        return Keeping

    def end(self) -> None:
        for hosts in (hosts for several in self.free.values() for hosts in several):
            hosts.end("the tests are over")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kept]:
    """A Ray that the runs of a module share; `connect` uses the one that its process has."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ours = not ray.is_initialized()  # tests of the controller in the same process keep one until the end
    if ours:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    kept = Kept()
    try:
        yield kept
    finally:
        kept.end()
        if ours:
            ray.shutdown()


class Runs:
    """Trains the job of tests/trainer/conftest.py; the trainer is handed back."""

    def __init__(self, job: list[str], kept: Kept | None, monkeypatch: pytest.MonkeyPatch):
        self.job, self.kept, self.monkeypatch = job, kept, monkeypatch

    def __call__(self, workers: int, *overrides: str) -> Any:
        with self.monkeypatch.context() as patch:
            if self.kept is not None:
                patch.setattr(setup, "executor", self.kept.group_of(setup.executor))
            return self.with_new_processes(workers, *overrides)

    def with_new_processes(self, workers: int, *overrides: str) -> Any:
        one_agent = "actor_rollout_ref.rollout.agent.num_workers=1"
        on_ray = ["trainer.executor=ray", f"trainer.n_gpus_per_node={workers}", one_agent]
        loaded = load_ppo([*self.job, *(on_ray if workers else ["trainer.executor=local"]), *overrides])
        setup.prepare(loaded)
        return setup.train(loaded.config, loaded.given)


@pytest.fixture
def run(job: list[str], reward: Any, cluster: Kept, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs([*job, "data.val_files=null"], cluster, monkeypatch)


@pytest.fixture
def struck(run: Runs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run`, in processes of its own, with a policy worker that a `strike` can hit."""
    monkeypatch.setattr(setup, "ActorRolloutRefWorker", StruckWorker)
    return run.with_new_processes


def lines_of(folder: str | Path) -> list[dict[str, Any]]:
    """The metrics of every step, without what differs by nature; NaN and infinity, which JSON writes as text, too."""
    lines = jsonl(folder, "metrics.jsonl")
    return [{k: float(v) for k, v in line.items() if not k.startswith(DIFFERS_BY_NATURE)} for line in lines]


def differences(one: Iterable[dict[str, Any]], other: Iterable[dict[str, Any]]) -> list[str]:
    """What differs between the metrics of two runs, in words; whether one was restarted does not count."""
    one, other, found = list(one), list(other), []
    if [line["step"] for line in one] != [line["step"] for line in other]:
        return [f"steps {[line['step'] for line in one]} and {[line['step'] for line in other]}"]
    for first, second in zip(one, other, strict=True):
        for name in sorted((first.keys() | second.keys()) - {"failures/restarts"}):
            a, b = first.get(name), second.get(name)
            if a is None or b is None or a != pytest.approx(b, rel=RELATIVE, abs=ABSOLUTE, nan_ok=True):
                found.append(f"step {first['step']}: {name} is {a} and {b}")
    return found


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def wait_for_end(left: Callable[[], Any], seconds: float) -> None:
    """Wait until `left` tells of nothing any more; what it still tells of is named."""
    end = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < end, f"still there after {seconds:g} s: {found}"
        time.sleep(0.05)
