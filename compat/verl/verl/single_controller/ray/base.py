"""Workers in processes of their own, as burnish's RayWorkerGroup runs them, made the way that verl's are.

A group is made from a pool and a class, or from the classes of several roles that share the pool's processes
(`create_colocated_worker_cls`, then `spawn`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.config.trainer import RayInitConfig, TrainerConfig
from burnish.controller import ClassWithInitArgs, Future, ResourcePool, WorkerGroup
from burnish.controller.dispatch import WorkerCall, own_to_each, same_to_all
from burnish.controller.ray import connect
from burnish.errors import ConfigError


class RayResourcePool(ResourcePool):
    """Processes on nodes: [8, 8] is eight on each of two nodes, with a GPU each if `use_gpu`."""

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
    ):
        super().__init__(process_on_nodes, name_prefix or "pool", "cuda" if use_gpu else "cpu")


class RayClassWithInitArgs(ClassWithInitArgs[Any]):
    """A worker class, also one behind `ray.remote`, and what its `__init__` takes."""

    def __init__(self, cls: Any, *args: Any, **kwargs: Any):
        if hasattr(cls, "__ray_metadata__"):
            cls = cls.__ray_metadata__.modified_class.__ray_actor_class__
        super().__init__(cls, *args, **kwargs)


def create_colocated_worker_cls(class_dict: Mapping[str, ClassWithInitArgs[Any]]) -> dict[str, ClassWithInitArgs[Any]]:
    """The classes of several roles, for one RayWorkerGroup."""
    return dict(class_dict)


class RayWorkerGroup:
    """The registered methods of the workers look local; any other is called with `execute_all_sync` and the like."""

    def __init__(
        self,
        resource_pool: ResourcePool,
        ray_cls_with_init: ClassWithInitArgs[Any] | Mapping[str, ClassWithInitArgs[Any]],
        bin_pack: bool = True,
        name_prefix: str | None = None,
        device_name: str = "cuda",
        ray_wait_register_center_timeout: float = 300,
    ):
        roles = ray_cls_with_init if isinstance(ray_cls_with_init, Mapping) else {"worker": ray_cls_with_init}
        cluster = connect(
            RayInitConfig(),
            processes=resource_pool.world_size,
            logs=None,
            deadline_s=TrainerConfig().worker_timeout,
            start_deadline_s=ray_wait_register_center_timeout,
        )
        self._groups: Mapping[str, WorkerGroup] = cluster.spawn(resource_pool, roles)
        self.world_size = resource_pool.world_size

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, WorkerGroup]:
        """The group of each role."""
        return {role: self._groups[role] for role in prefix_set}

    @property
    def _group(self) -> WorkerGroup:
        if len(self._groups) > 1:
            raise ConfigError(f"this group has the roles {', '.join(self._groups)}; spawn them, and call one of those")
        return next(iter(self._groups.values()))

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> Future:
        """With the i-th entries on worker i, where all arguments are lists of one entry for each; else the same on all.
        The future's `get` gives a list of results."""
        given = [*args, *kwargs.values()]
        own = bool(given) and all(isinstance(one, list) and len(one) == self.world_size for one in given)
        return self._group.submit(
            method_name, (own_to_each if own else same_to_all)(self.world_size, *args, **kwargs).calls
        )

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        results: list[Any] = self.execute_all_async(method_name, *args, **kwargs).get()
        return results

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        return self._group.submit(method_name, [WorkerCall(args, kwargs)]).get()[0]

    execute_all = execute_all_async
    execute_rank_zero = execute_rank_zero_sync

    def __getattr__(self, name: str) -> Any:
        if name == "_groups":
            raise AttributeError(name)
        return getattr(self._group, name)
