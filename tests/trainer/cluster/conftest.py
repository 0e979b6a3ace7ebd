"""Whole runs in several processes, as `burnish ppo` makes them: `run(2, *overrides)` has two workers, `run(0, …)` is
one process."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burnish.config.load import load_ppo
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
ONE_AGENT = "actor_rollout_ref.rollout.agent.num_workers=1"
LONG = [pytest.mark.slow, pytest.mark.cluster]
WORKER = re.compile(b"ray::|burnish.controller.processes.fork_server")  # in its command line


@pytest.fixture(params=["processes", pytest.param("ray", marks=[pytest.mark.ray, *LONG])])
def executor(request: pytest.FixtureRequest) -> str:
    """Every test is run with the processes of this machine; with Ray, those that ask for it and the long trials."""
    if request.param == "ray":
        request.getfixturevalue("shared_ray")
    return str(request.param)


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    """A Ray that the runs of a module share; `connect` uses the one that its process has."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ours = not ray.is_initialized()  # tests of the controller in the same process keep one until the end
    if ours:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    if ours:
        ray.shutdown()


class Runs:
    """Trains the job of tests/trainer/conftest.py; the trainer is handed back."""

    def __init__(self, job: list[str], executor: str):
        self.job, self.executor = job, executor

    def __call__(self, workers: int, *overrides: str) -> Any:
        several = [f"trainer.executor={self.executor}", f"trainer.n_gpus_per_node={workers}", ONE_AGENT]
        loaded = load_ppo([*self.job, *(several if workers else ["trainer.executor=local"]), *overrides])
        setup.prepare(loaded)
        return setup.train(loaded.config, loaded.given)


@pytest.fixture
def run(job: list[str], reward: Any, executor: str) -> Runs:
    return Runs([*job, "data.val_files=null"], executor)


@pytest.fixture
def struck(run: Runs, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run`, with a policy worker that a `strike` can hit."""
    monkeypatch.setattr(setup, "ActorRolloutRefWorker", StruckWorker)
    return run


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
