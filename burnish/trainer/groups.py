"""The worker groups of a run: made, loaded and asked all at once, where their processes can do so at the same time."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from burnish.controller import ClassWithInitArgs, ResourcePoolManager, Role, Worker, WorkerGroup

T = TypeVar("T")


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


def write_captured(group: WorkerGroup, folder: Path) -> None:
    """Have the workers write the checkpoint that they captured, each while it computes.

    Waits for all, also where one could not: as long as the others write, their folder must stay.
    """

    async def all_of_them() -> list[BaseException | None]:
        calls = (peer.call("write_captured", folder) for peer in group.peers())
        return await asyncio.gather(*calls, return_exceptions=True)

    for outcome in asyncio.run(all_of_them()):
        if isinstance(outcome, BaseException):
            raise outcome


def close_within(seconds: float, group: Any) -> None:
    """Have the workers end what they started; those that are busy longer are ended themselves, by `shutdown`."""
    group.close.start().get(seconds)


def in_parallel(function: Callable[[str], T], names: Iterable[str]) -> list[T]:
    """What a function gives for each name; where there are several, in threads: it waits for other processes."""
    names = list(names)
    if len(names) == 1:
        return [function(names[0])]
    with ThreadPoolExecutor(len(names)) as threads:
        return list(threads.map(function, names))
