"""The worker groups of a run as the loop uses them: what their processes can do at the same time, they do.

`Passes` are those of models over one batch that do not need each other: old log-probs, the reference, values. Each is
begun as soon as it can be and waited for at the end. On one device, or in one process, they run one after another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from burnish import spans
from burnish.config import PPOConfig
from burnish.controller import ClassWithInitArgs, ResourcePoolManager, Role, Worker, WorkerGroup
from burnish.controller.group import Future
from burnish.data.files import Row
from burnish.errors import BurnishError, WorkerDied, WorkersLate
from burnish.protocol import DataProto
from burnish.tracking.timer import timed
from burnish.workers.rollouts import RoundSettings, replica_metrics

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSING_S, BUSY_S = 60.0, 2.0  # for workers to end what they started; after a failure they may be busy with other calls

ROW = "row_of_passes"  # column of a batch whose passes began before all of its rows were known to stay
READ = ("input_ids", "attention_mask", "responses")


def make_groups(
    manager: ResourcePoolManager, group_class: type[WorkerGroup], classes: Mapping[str, type[Worker]], *arguments: Any
) -> dict[str, WorkerGroup]:
    """A group for every role, by role; `arguments` are what its workers are made with."""

    def spawn(name: str) -> Mapping[str, WorkerGroup]:
        roles = {role: ClassWithInitArgs(classes[role], *arguments) for role in manager.roles_of(name)}
        return group_class.spawn(manager.pools[name], roles)

    return {role: group for made in in_parallel(spawn, manager.pools) for role, group in made.items()}


def load_models(manager: ResourcePoolManager, groups: Mapping[str, Any]) -> None:
    """Have all groups but the agent loops load their models: of one pool one after another."""

    def load(name: str) -> None:
        for role in manager.roles_of(name):
            if role != Role.AgentLoop:
                groups[role].init_model()

    in_parallel(load, manager.pools)


def in_parallel(function: Callable[[str], T], names: Iterable[str]) -> list[T]:
    """What a function gives for each name; where there are several, in threads: it waits for other processes."""
    names = list(names)
    if len(names) == 1:
        return [function(names[0])]
    with ThreadPoolExecutor(len(names)) as threads:
        return list(threads.map(function, names))


def write_captured(group: WorkerGroup, folder: Path) -> None:
    """Have the workers write the checkpoint that they captured, each while it computes. Waits for all, also where one
    failed: as others write, their folder must stay."""

    async def all_of_them() -> list[BaseException | None]:
        calls = (peer.call("write_captured", folder) for peer in group.peers())
        return await asyncio.gather(*calls, return_exceptions=True)

    for outcome in asyncio.run(all_of_them()):
        if isinstance(outcome, BaseException):
            raise outcome


@contextlib.contextmanager
def profiled(config: PPOConfig, step: int, groups: Mapping[str, Any]) -> Iterator[None]:
    """Have the workers record this step, where it is one of `global_profiler.steps`."""
    if step not in (config.global_profiler.steps or ()):
        yield
        return
    recording = [group for group in groups.values() if "start_profile" in group.methods]
    with spans.waits_recorded():
        try:
            for group in recording:
                group.start_profile(step)
            yield
        except (WorkerDied, WorkersLate):
            raise
        except BaseException as error:  # what was recorded of a step that failed is written too
            for group in recording:
                with contextlib.suppress(BurnishError):
                    group.stop_profile.start().get(CLOSING_S if isinstance(error, Exception) else BUSY_S)
            raise
        for group in recording:
            group.stop_profile()
    log.info("step %d was profiled into %s", step, config.global_profiler.save_path or "profiles/ of the run folder")


def close_within(seconds: float, group: Any) -> None:
    """Have the workers end what they started; those that are busy longer are ended themselves, by `shutdown`."""
    group.close.start().get(seconds)


class RemoteRollouts:
    """The policy, where agent loops run in processes of their own over its engines, up to `staleness` rounds ahead."""

    def __init__(self, policy: WorkerGroup, agents: WorkerGroup, staleness: int = 0):
        self.policy, self.agents = policy, agents
        agents.connect(policy.peers(1 + staleness))
        self._counted: list[dict[str, float]] = policy.engine_stats()  # up to the last batch

    def update_weights(self, version: int) -> None:
        """Bring the newest weights to every replica; each proves that they have arrived, or raises."""
        self.policy.update_weights(version)

    def begin_sequences(self, rows: Sequence[Row], settings: RoundSettings) -> None:
        self.agents.begin_sequences(rows, settings)

    def finish_sequences(self, number: int) -> DataProto:
        """Wait for what was begun under this number. Its metrics count what the replicas did since the batch before."""
        answered: DataProto = self.agents.finish_sequences(number)
        before, self._counted = self._counted, self.policy.engine_stats()
        metrics = answered.meta_info.setdefault("metrics", {})
        metrics.update({name: [value] for name, value in replica_metrics(before, self._counted).items()})
        return answered


class Passes:
    """The passes over `batch`. Their seconds are those that the controller waited for each."""

    def __init__(self, batch: DataProto, metrics: dict[str, float]):
        self.metrics = metrics
        self.given = batch.select(READ, [])  # all that a pass of a model reads
        self._begun: list[tuple[str, Future]] = []

    def begin(self, name: str, start: Callable[..., Future], *arguments: Any) -> None:
        with timed(self.metrics, name):
            self._begun.append((name, start(self.given, *arguments)))

    def join(self, batch: DataProto) -> DataProto:
        """The batch with the columns of all passes; where rows were dropped since they began, without those."""
        rows = batch.non_tensor_batch.pop(ROW, None)
        for name, future in self._begun:
            with timed(self.metrics, name):
                added: DataProto = future.get()
            batch = batch.union(added if rows is None else added[rows.astype(int)])
        return batch
